"""The work of an ONNX graph, by shape inference: nothing is computed, weights are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import onnx
import onnx.inliner

from interlace.core.errors import RepositoryError
from interlace.core.work import Kind, LayerWork, ModelWork
from interlace.formats.onnx_shapes import Tensors

_NOTHING: Final = """Cast Constant ConstantOfShape DequantizeLinear Dropout Flatten Identity
    DynamicQuantizeLinear QuantizeLinear Range Reshape Shape Size Squeeze Unsqueeze"""
_ELEMENTWISE: Final = """Add BatchNormalization BiasGelu Clip Div Elu Erf FastGelu Gelu HardSigmoid
    HardSwish LeakyRelu Mul PRelu Pow Relu Sigmoid Softplus Sqrt Sub Tanh"""
#: Operators that move nothing on the GPU: shapes, constants, other views of the same data.
_FREE: Final = frozenset(_NOTHING.split())
#: Operators that run inside the product before them.
_FUSED: Final = frozenset(_ELEMENTWISE.split())
#: What else is known: it takes its time by what it reads and writes.
_MOVING: Final[Mapping[Kind, str]] = {
    "pass": """Abs And BiasAdd BiasSplitGelu Ceil Celu Concat Cos DepthToSpace Equal Exp Expand
        Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Min Mish Mod Neg Not Or
        Pad QuickGelu Reciprocal ReverseSequence RotaryEmbedding Round Selu Sign Sin Slice Softsign
        SpaceToDepth Split Sum Swish Tile Transpose Trilu Where Xor""",
    "norm": """ArgMax ArgMin CumSum EmbedLayerNormalization GroupNormalization Hardmax
        InstanceNormalization LRN LayerNormalization LogSoftmax LpNormalization
        MeanVarianceNormalization RMSNormalization ReduceL2 ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization Softmax""",
    "pool": """AffineGrid AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool
        Resize Upsample""",
    "gather": """Compress Gather GatherBlockQuantized GatherElements GatherND GridSample
        NonMaxSuppression NonZero OneHot RoiAlign ScatterElements ScatterND TopK""",
}
_OTHERS: Final[Mapping[str, Kind]] = {
    name: kind
    for kind, names in (("pass", _ELEMENTWISE), *_MOVING.items())
    for name in names.split()
}
#: Products by the place of their weights among the inputs.
_CONVOLUTIONS: Final[Mapping[str, int]] = {
    "Conv": 1, "ConvTranspose": 1, "FusedConv": 1, "NhwcConv": 1, "ConvInteger": 1,
    "DeformConv": 1, "QLinearConv": 3,
}  # fmt: skip
_NAMED_MATMULS: Final = """DynamicQuantizeMatMul FusedGemm FusedMatMul Gemm MatMul MatMulInteger
    MatMulIntegerToFloat MatMulNBits QLinearMatMul"""
_MATMULS: Final = frozenset(_NAMED_MATMULS.split())
_ATTENTIONS: Final = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_RECURRENT: Final = ("LSTM", "GRU", "RNN")
_BLOCKS: Final = ("Loop", "Scan", "If")
#: Rounds of a loop that are counted one by one.
_MOST_ROUNDS: Final = 1000
_FLOATS: Final = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)
_HALVES: Final = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def count(path: Path, sizes: Mapping[str, Sequence[int]]) -> ModelWork:
    """Count the kernels of a graph for one row.

    ``sizes`` gives, by input, the dims that follow the rows; where neither it nor the graph knows a
    size, it is 1 for the first dim, 224 for sides of images and 64 for others.

    Raises:
        RepositoryError: the file is not an ONNX graph, or has no operators.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # protobuf's and onnx's own, by version
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise RepositoryError(str(path), text, "an ONNX graph") from None
    if not model.graph.node:
        raise RepositoryError(str(path), "no operators", "an ONNX graph")
    tensors = Tensors(model)
    tensors.enter(model.graph)
    tensors.take(model.graph.input, sizes)
    work = _Graph(tensors)
    layers = work.count(model.graph)
    floats = [one for one in model.graph.initializer if one.data_type in _FLOATS]
    stored = float(sum(prod(one.dims) for one in floats))
    halves = sum(prod(one.dims) for one in floats if one.data_type in _HALVES)
    assumed = tuple(tensors.assumed)
    return ModelWork(tuple(layers), tuple(work.unread), True, 2 * halves > stored, stored, assumed)


class _Graph:
    """A graph whose nodes are passed in order, and their kernels counted."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._shapes, self._fixed = tensors.shapes, tensors.fixed
        self._producers: dict[str, Any] = {}
        self.unread: list[str] = []

    def count(self, graph: Any) -> list[LayerWork]:
        """All kernels; nodes whose work is not known are added to ``unread``."""
        layers: list[LayerWork] = []
        for node in graph.node:
            if node.op_type in _BLOCKS:
                layers += self._block(node)
                continue
            self._tensors.pass_node(node)
            if all(name in self._fixed for name in node.output if name):
                continue  # a shape, or what follows from one
            if all(name in self._fixed for name in node.input if name):
                self._fixed |= set(node.output)  # computed when the model is loaded
                continue
            if node.op_type in _FREE or self._fuses(node):
                self._inherit(node)
                continue
            layers += self._kernels(node)
            self._producers.update(dict.fromkeys(node.output, node))
        return layers

    def _kernels(self, node: Any) -> list[LayerWork]:
        try:
            return list(self._layers(node))
        except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
            why = f"no shape of {error}" if isinstance(error, KeyError) else "odd inputs"
            self._unread(node, why)
        except NotImplementedError:
            self._unread(node, "unknown operator")
        return []

    def _unread(self, node: Any, why: str) -> None:
        self.unread.append(f"{node.name or next(iter(node.output), '?')} ({node.op_type}): {why}")

    def _fuses(self, node: Any) -> bool:
        """Whether it runs inside a product: the last of its inputs to be made is one's output."""
        made = [self._producers[name] for name in node.input if name in self._producers]
        return node.op_type in _FUSED and any(_is_product(one) for one in made)

    def _inherit(self, node: Any) -> None:
        """What is fused or free stands for what made its input."""
        made = [self._producers[name] for name in node.input if name in self._producers]
        products = [one for one in made if _is_product(one)]
        if made:
            self._producers.update(dict.fromkeys(node.output, (products or made)[0]))

    def _layers(self, node: Any) -> Iterator[LayerWork]:
        shapes = self._shapes
        first = node.input[0]
        ins = [(name, shapes[name]) for name in node.input if name in shapes or name == first]
        weights = float(sum(prod(dims) for name, dims in ins if name in self._fixed))
        read = float(sum(prod(dims) for name, dims in ins if name not in self._fixed))
        operator = node.op_type
        if operator in _RECURRENT:
            yield from self._recurrent(node, weights)
            return
        out = shapes[node.output[0]]
        written = float(prod(out))
        if operator in _ATTENTIONS:
            yield from self._attention(node, ins, read, out)
            return
        if kind := _OTHERS.get(operator.removeprefix("QLinear")):
            if kind == "gather":
                weights, read = 0.0, written
            yield LayerWork(kind, 0.0, weights, read, written, written, 1.0, 1.0)
            return
        kind, n, k = self._product(node, out)
        yield LayerWork(kind, 2 * written * k, weights, read, written, written / n, n, k)

    def _product(self, node: Any, out: tuple[int, ...]) -> tuple[Kind, float, float]:
        operator = node.op_type
        if operator in _CONVOLUTIONS:
            weight = self._shapes[node.input[_CONVOLUTIONS[operator]]]
            groups = _integer(node, "group", 1)
            k = float(prod(weight[1:]))
            if operator == "ConvTranspose":
                k = weight[0] / groups / _stride(node) * prod(weight[2:])
            kind: Kind = "conv" if groups == 1 else "depthwise" if weight[1] == 1 else "grouped"
            return kind, out[1] / groups, k
        if operator in _MATMULS:
            first = self._shapes[node.input[0]]
            k = float(first[-2 if _integer(node, "transA", 0) else -1])
            return "matmul", float(out[-1]) if len(out) else 1.0, k
        if operator == "Einsum":
            return self._einsum(node)
        raise NotImplementedError(operator)

    def _einsum(self, node: Any) -> tuple[Kind, float, float]:
        equation = next(one.s.decode() for one in node.attribute if one.name == "equation")
        terms, _, made = equation.replace(" ", "").partition("->")
        if "." in equation or not made:
            raise NotImplementedError(equation)
        dims: dict[str, int] = {}
        for term, name in zip(terms.split(","), node.input, strict=True):
            dims.update(zip(term, self._shapes[name], strict=True))
        return "matmul", float(dims[made[-1]]), float(prod(dims[c] for c in dims if c not in made))

    def _attention(
        self,
        node: Any,
        ins: Sequence[tuple[str, tuple[int, ...]]],
        read: float,
        out: tuple[int, ...],
    ) -> Iterator[LayerWork]:
        """One kernel that writes no scores, behind the projection where the operator has one."""
        first = ins[0][1]
        heads = _integer(node, "num_heads", _integer(node, "q_num_heads", 1))
        projects = node.op_type == "Attention" and node.domain == "com.microsoft"
        if projects:
            n, k = self._shapes[node.input[1]][-1], first[-1]
            values = float(prod(first[:-1]))
            yield LayerWork("matmul", 2 * values * n * k, float(n * k), read, values * n,
                            values, float(n), float(k))  # fmt: skip
        separate = not projects and len(node.input) > 1 and bool(node.input[1])
        keys = self._shapes[node.input[1]][-2] if separate else first[-2]
        rows, width = prod(out[:-1]), out[-1]
        deep = len(out) == 4  # heads have a dim of their own
        each = width if deep else width / heads
        m = float(rows if deep else rows * heads)
        flops, written = 4.0 * rows * keys * width, float(prod(out))
        yield LayerWork("attention", flops, 0.0, read, written, m, float(each), float(each))

    def _recurrent(self, node: Any, weights: float) -> Iterator[LayerWork]:
        """One product for each step in time; a step waits for the one before."""
        steps = self._shapes[node.input[0]][1 if _integer(node, "layout", 0) else 0]
        directions, width, features = self._shapes[node.input[1]]
        hidden = self._shapes[node.input[2]][-1]
        k = float(features + hidden)
        n = float(directions * width)
        for step in range(steps):
            once = weights if step == 0 else 0.0
            yield LayerWork("matmul", 2 * n * k, once, k, n, 1.0, n, k)

    def _block(self, node: Any) -> list[LayerWork]:
        """The kernels of a loop's rounds, or of the branch that computes more."""
        bodies = [one.g for one in node.attribute if one.type == onnx.AttributeProto.GRAPH]
        if node.op_type == "If":
            found = [self._body(body, ()) for body in bodies]
            asked = self._tensors.values.get(node.input[0])
            order = [one.name for one in node.attribute if one.g.node or one.g.output]
            chosen = max(range(len(found)), key=lambda at: sum(one.flops for one in found[at]))
            if asked is not None:
                chosen = order.index("then_branch" if asked.all() else "else_branch")
            for name, inner in zip(node.output, bodies[chosen].output, strict=True):
                self._tensors.same(name, inner.name)
            return found[chosen]
        (body,) = bodies
        return self._loop(node, body) if node.op_type == "Loop" else self._scan(node, body)

    def _body(
        self, body: Any, given: Sequence[tuple[str, Sequence[int] | None]]
    ) -> list[LayerWork]:
        """The kernels of a block; ``given`` are outer names for its inputs, with other dims."""
        self._tensors.enter(body)
        for value, (name, dims) in zip(body.input, given, strict=False):
            if name:
                self._tensors.same(value.name, name, dims)
        return self.count(body)

    def _loop(self, node: Any, body: Any) -> list[LayerWork]:
        limit = self._tensors.values.get(node.input[0])
        rounds = 1 if limit is None else int(limit.item())
        if limit is None:
            self._unread(node, "counted once, its rounds are not known")
        self._tensors.set(body.input[0].name, onnx.TensorProto.INT64, ())
        self._tensors.set(body.input[1].name, onnx.TensorProto.BOOL, ())
        carried = [(name, self._shapes.get(name)) for name in node.input[2:]]
        layers = self._body(body, [("", None), ("", None), *carried])
        return self._repeated(node, layers, rounds, body.output[1:], len(carried))

    def _scan(self, node: Any, body: Any) -> list[LayerWork]:
        count = _integer(node, "num_scan_inputs", 1)
        states, parts = list(node.input)[:-count], list(node.input)[-count:]
        rounds = self._shapes.get(parts[0], (1,))[0]
        given = [(name, self._shapes.get(name)) for name in states]
        given += [
            (name, self._shapes[name][1:] if name in self._shapes else None) for name in parts
        ]
        return self._repeated(node, self._body(body, given), rounds, body.output, len(states))

    def _repeated(
        self, node: Any, layers: list[LayerWork], rounds: int, outputs: Any, states: int
    ) -> list[LayerWork]:
        for place, (name, inner) in enumerate(zip(node.output, outputs, strict=False)):
            dims = self._shapes.get(inner.name)
            stacked = (rounds, *dims) if place >= states and dims is not None else dims
            self._tensors.same(name, inner.name, stacked)
        if rounds > _MOST_ROUNDS:
            self._unread(node, f"{_MOST_ROUNDS} of {rounds} rounds counted")
        again = [msgspec.structs.replace(one, weights=0.0) for one in layers]
        return (layers + again * (min(rounds, _MOST_ROUNDS) - 1)) if rounds > 0 else []


def _is_product(node: Any) -> bool:
    return node.op_type in _CONVOLUTIONS or node.op_type in _MATMULS


def _integer(node: Any, name: str, default: int) -> int:
    return next((int(one.i) for one in node.attribute if one.name == name), default)


def _stride(node: Any) -> float:
    """How many input values a transposed convolution skips for each that a result sees."""
    strides = next((tuple(one.ints) for one in node.attribute if one.name == "strides"), ())
    return float(prod(strides)) if strides else 1.0
