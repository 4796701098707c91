"""The work of an ONNX graph, by shape inference: nothing is computed, weights are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from interlace.core.errors import RepositoryError
from interlace.core.tensor import FREE_DIM
from interlace.core.work import Kind, LayerWork, ModelWork

_NOTHING: Final = """Cast Constant ConstantOfShape DequantizeLinear Dropout Flatten Identity
    QuantizeLinear Range Reshape Shape Size Squeeze Unsqueeze"""
_ELEMENTWISE: Final = """Add BatchNormalization BiasGelu Clip Div Elu Erf FastGelu Gelu HardSigmoid
    HardSwish LeakyRelu Mul PRelu Pow Relu Sigmoid Softplus Sqrt Sub Tanh"""
#: Operators that move nothing on the GPU: shapes, constants, other views of the same data.
_FREE: Final = frozenset(_NOTHING.split())
#: Operators that run inside the product before them.
_FUSED: Final = frozenset(_ELEMENTWISE.split())
#: What else is known: it takes its time by what it reads and writes.
_MOVING: Final[Mapping[Kind, str]] = {
    "pass": """Abs And Ceil Concat Cos DepthToSpace Equal Exp Expand Floor Greater GreaterOrEqual
        Less LessOrEqual Log Max Min Mod Neg Not Or Pad QuickGelu Reciprocal Round Sign Sin Slice
        SpaceToDepth Split Sum Tile Transpose Where""",
    "norm": """ArgMax ArgMin CumSum EmbedLayerNormalization GroupNormalization
        InstanceNormalization LRN LayerNormalization LogSoftmax LpNormalization
        MeanVarianceNormalization RMSNormalization ReduceL2 ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare SimplifiedLayerNormalization SkipLayerNormalization
        Softmax""",
    "pool": "AveragePool GlobalAveragePool GlobalMaxPool MaxPool Resize Upsample",
    "gather": """Gather GatherElements GatherND GridSample NonMaxSuppression NonZero OneHot
        RoiAlign ScatterElements ScatterND TopK""",
}
_OTHERS: Final[Mapping[str, Kind]] = {
    name: kind
    for kind, names in (("pass", _ELEMENTWISE), *_MOVING.items())
    for name in names.split()
}
#: What graphs work out shapes with; values of more elements are no shapes.
_ARITHMETIC: Final = frozenset(
    [
        "Add",
        "Cast",
        "Concat",
        "Constant",
        "Div",
        "Floor",
        "Gather",
        "Mul",
        "Range",
        "ReduceProd",
        "Reshape",
        "Slice",
        "Squeeze",
        "Sub",
        "Unsqueeze",
    ]
)
_SMALL: Final = 64
_ROUNDS: Final = 8
_PRODUCTS: Final = (
    *("Conv", "ConvTranspose", "FusedConv"),
    *("Gemm", "FusedGemm", "MatMul", "FusedMatMul"),
)
_RECURRENT: Final = ("LSTM", "GRU", "RNN")


def count(path: Path, sizes: Mapping[str, Sequence[int]]) -> ModelWork:
    """Count the kernels of a graph for one row.

    ``sizes`` gives, by input, the dims that follow the rows; where neither it nor the graph knows a
    size, it is 1 for the first dim and 64 for others.

    Raises:
        RepositoryError: the file is not an ONNX graph, or its shapes contradict each other.
    """
    try:
        model = onnx.load(str(path), load_external_data=False)
        _settle(model.graph, sizes)
        model = _inferred(model)
    except Exception as error:  # protobuf's, onnx's own and RuntimeError, by version
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise RepositoryError(str(path), text, "an ONNX graph whose shapes follow") from None
    return _Graph(model.graph).count()


def _settle(graph: Any, sizes: Mapping[str, Sequence[int]]) -> None:
    """Write a size at each free dim of the inputs; what was said of outputs may be too narrow."""
    stored = {one.name for one in graph.initializer}
    for value in graph.input:
        if value.name in stored:
            continue
        dims = value.type.tensor_type.shape.dim
        given = list(sizes.get(value.name, ()))
        said = [1, *given] if len(given) == len(dims) - 1 else given
        for place, dim in enumerate(dims):
            if not dim.HasField("dim_value") or dim.dim_value <= 0:
                known = said[place] if place < len(said) and said[place] > 0 else 0
                dim.dim_value = known or (1 if place == 0 else FREE_DIM)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]


def _inferred(model: Any) -> Any:
    """The model with the shapes that can be inferred; shapes that are computed are folded."""
    for _ in range(_ROUNDS):
        found = shape_inference.infer_shapes(model, data_prop=True)
        if not _fold(model.graph, _Graph(found.graph).shapes):
            break
    return found


def _fold(graph: Any, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Put values for nodes that follow from constants and known shapes; whether there was one."""
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer if _is_small(one)}
    kept = []
    for node in graph.node:
        ready = all(name in values for name in node.input if name)
        if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
            made: list[Any] = [np.array(shapes[node.input[0]], dtype=np.int64)]
        elif node.op_type in _ARITHMETIC and ready and not node.domain:
            feeds = {name: values[name] for name in node.input if name}
            made = list(ReferenceEvaluator(node).run(None, feeds))
        else:
            kept.append(node)
            continue
        values.update(zip(node.output, made, strict=True))
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in zip(node.output, made, strict=True)
        )
    folded = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _is_small(one: Any) -> bool:
    outside = bool(one.data_location == onnx.TensorProto.EXTERNAL)
    return not outside and prod(one.dims) <= _SMALL


class _Graph:
    """A graph whose shapes are known."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.shapes: dict[str, tuple[int, ...]] = {
            one.name: tuple(one.dims) for one in graph.initializer
        }
        self._fixed = set(self.shapes)
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.name not in self.shapes and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                if all(dim.HasField("dim_value") for dim in dims):
                    self.shapes[value.name] = tuple(dim.dim_value for dim in dims)
        self._producers: dict[str, Any] = {}

    def count(self) -> ModelWork:
        """All kernels, and the nodes whose work is not known."""
        layers: list[LayerWork] = []
        unread: list[str] = []
        for node in self._graph.node:
            if all(name in self._fixed for name in node.input if name):
                self._fixed |= set(node.output)  # folded when the model is loaded
                continue
            if node.op_type in _FREE or self._fuses(node):
                self._inherit(node)
                continue
            try:
                layers += self._layers(node)
            except (KeyError, IndexError, ZeroDivisionError) as error:
                why = f"no shape of {error}" if isinstance(error, KeyError) else "odd inputs"
                unread.append(f"{node.name or node.output[0]} ({node.op_type}): {why}")
            except NotImplementedError:
                unread.append(f"{node.name or node.output[0]} ({node.op_type}): unknown operator")
            self._producers.update(dict.fromkeys(node.output, node))
        return ModelWork(tuple(layers), tuple(unread), fused=True)

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
        ins = [(name, self.shapes[name]) for name in node.input if name]
        weights = float(sum(prod(dims) for name, dims in ins if name in self._fixed))
        read = float(sum(prod(dims) for name, dims in ins if name not in self._fixed))
        operator = node.op_type
        if operator in _RECURRENT:
            yield from self._recurrent(node, weights)
            return
        out = self.shapes[node.output[0]]
        written = float(prod(out))
        if operator in _OTHERS:
            kind = _OTHERS[operator]
            if kind == "gather":
                weights, read = 0.0, written
            yield LayerWork(kind, 0.0, weights, read, written, written, 1.0, 1.0)
            return
        kind, n, k = self._product(node, out)
        flops = 2 * written * k
        yield LayerWork(kind, flops, weights, read, written, written / n, n, k)

    def _product(self, node: Any, out: tuple[int, ...]) -> tuple[Kind, float, float]:
        if node.op_type in ("Conv", "ConvTranspose", "FusedConv"):
            weight, groups = self.shapes[node.input[1]], _integer(node, "group", 1)
            k = float(prod(weight[1:]))
            if node.op_type == "ConvTranspose":
                k = weight[0] / groups / _stride(node) * prod(weight[2:])
            kind: Kind = "conv" if groups == 1 else "depthwise" if weight[1] == 1 else "grouped"
            return kind, out[1] / groups, k
        if node.op_type in ("MatMul", "FusedMatMul"):
            return "matmul", float(out[-1]), float(self.shapes[node.input[0]][-1])
        if node.op_type in ("Gemm", "FusedGemm"):
            first = self.shapes[node.input[0]]
            return "matmul", float(out[-1]), float(first[0 if _integer(node, "transA", 0) else 1])
        raise NotImplementedError(node.op_type)

    def _recurrent(self, node: Any, weights: float) -> Iterator[LayerWork]:
        """One product for each step in time; a step waits for the one before."""
        steps = self.shapes[node.input[0]][0]
        directions, width, features = self.shapes[node.input[1]]
        hidden = self.shapes[node.input[2]][-1]
        k = float(features + hidden)
        n = float(directions * width)
        for step in range(steps):
            once = weights if step == 0 else 0.0
            yield LayerWork("matmul", 2 * n * k, once, k, n, 1.0, n, k)


def _is_product(node: Any) -> bool:
    return node.op_type in _PRODUCTS


def _integer(node: Any, name: str, default: int) -> int:
    return next((int(one.i) for one in node.attribute if one.name == name), default)


def _stride(node: Any) -> float:
    """How many input values a transposed convolution skips for each that a result sees."""
    strides = next((tuple(one.ints) for one in node.attribute if one.name == "strides"), ())
    return float(prod(strides)) if strides else 1.0
