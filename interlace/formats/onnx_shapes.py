"""Shapes of an ONNX graph's tensors, node by node: what graphs compute shapes with is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from interlace.core.tensor import FREE_DIM

#: Values of more elements take no part in the computation of shapes.
_SMALL: Final = 1 << 16
#: ONNX Runtime's operators by the standard one whose shapes they have.
_LIKE: Final[Mapping[str, str]] = {
    "FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "NhwcConv": "Conv",
}  # fmt: skip
#: Sides of an image, and how many channels one has.
_SIDE: Final = 224
_CHANNELS: Final = (1, 3, 4)
_RANDOM: Final = ("Random", "Multinomial", "Bernoulli", "Dropout")


class Tensors:
    """What is known of tensors by name, while the nodes of a graph are passed in order.

    ``shapes`` are of one row; ``fixed`` are weights and what follows from them or from shapes;
    ``values`` are small ones among these. ``assumed`` names inputs with sizes that nobody said.
    """

    def __init__(self, model: Any) -> None:
        self._opsets = {one.domain or "ai.onnx": one.version for one in model.opset_import}
        self._version = self._opsets.get("ai.onnx", 1)
        self._imports = list(model.opset_import)
        self._types: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.fixed: set[str] = set()
        self.values: dict[str, Any] = {}
        self.assumed: list[str] = []

    def enter(self, graph: Any) -> None:
        """Take a graph's weights and the shapes that it states inside."""
        for one in graph.initializer:
            self.set(one.name, one.data_type, tuple(one.dims))
            self.fixed.add(one.name)
            if one.data_location != onnx.TensorProto.EXTERNAL and prod(one.dims) <= _SMALL:
                self.values[one.name] = numpy_helper.to_array(one)
        self._told.update((one.name, one.type) for one in graph.value_info)

    def take(self, inputs: Sequence[Any], sizes: Mapping[str, Sequence[int]]) -> None:
        """Take a model's inputs with a size at each free dim."""
        for value in (one for one in inputs if one.name not in self.fixed):
            of = value.type.tensor_type
            given = list(sizes.get(value.name, ()))
            if not of.HasField("shape"):  # what follows is not known either, but for a given shape
                if given:
                    self.set(value.name, of.elem_type, _filled([1, *given]))
                continue
            stated = [1, *given] if len(given) == len(of.shape.dim) - 1 else given
            sizes_said = [
                dim.dim_value or (stated[place] if place < len(stated) else 0)
                for place, dim in enumerate(of.shape.dim)
            ]
            dims = _filled(sizes_said)
            self.set(value.name, of.elem_type, dims)
            if any(size <= 0 for size in sizes_said[1:]):
                self.assumed.append(f"{value.name} {'x'.join(map(str, dims))}")

    def set(self, name: str, datatype: int, dims: tuple[int, ...]) -> None:
        """Note a tensor's type and shape."""
        self._types[name] = helper.make_tensor_type_proto(datatype, dims)
        self.shapes[name] = dims

    def same(self, name: str, like: str, dims: Sequence[int] | None = None) -> None:
        """Note a tensor of another's type and, without ``dims``, of its shape; unknown stays so."""
        if like in self._types:
            self._types[name] = self._types[like]
            if dims is not None:
                self.set(name, self._types[like].tensor_type.elem_type, tuple(dims))
            elif like in self.shapes:
                self.shapes[name] = self.shapes[like]
            if dims is None and like in self.values:
                self.values[name] = self.values[like]

    def pass_node(self, node: Any) -> None:
        """Find the shapes of a node's outputs, and their values if these follow.

        An operator that is not known, or whose shapes cannot be inferred, keeps its first input's.
        """
        for name, one in self._inferred(node).items():
            self._note(name, one)
        for name in node.output:
            if name and name not in self._types and name in self._told:
                self._note(name, self._told[name])
        if node.input and node.output and node.output[0] not in self._types:
            self._contributed(node)
        self._evaluate(node)

    def _note(self, name: str, of: Any) -> None:
        dims = of.tensor_type.shape.dim
        self._types[name] = of
        if of.tensor_type.HasField("shape") and all(one.HasField("dim_value") for one in dims):
            self.shapes[name] = tuple(one.dim_value for one in dims)

    def _inferred(self, node: Any) -> Mapping[str, Any]:
        if node.op_type in _LIKE:
            kept = [a for a in node.attribute if not a.name.startswith(("activation", "trans"))]
            node = helper.make_node(_LIKE[node.op_type], list(node.input)[:2], list(node.output))
            node.attribute.extend(kept if node.op_type == "Conv" else [])
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            version = self._opsets[domain or "ai.onnx"]
            schema = onnx.defs.get_schema(node.op_type, version, domain)
            types = {name: self._types[name] for name in node.input if name}
            data = {
                name: numpy_helper.from_array(self.values[name], name)
                for name in node.input
                if name in self.values
            }
            found: Mapping[str, Any] = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._imports
            )
        except Exception:  # onnx's own, by version: an input or the operator is not known
            return {}
        return found

    def _contributed(self, node: Any) -> None:
        """The shape of an operator that ONNX does not define."""
        first = self.shapes.get(node.input[0])
        dims: Sequence[int] | None = None
        if first is not None and node.op_type == "MatMulNBits":
            dims = (*first[:-1], next(one.i for one in node.attribute if one.name == "N"))
        elif first is not None and node.op_type == "Attention" and len(node.input) > 1:
            dims = (*first[:-1], self.shapes.get(node.input[1], (0,))[-1] // 3)
        elif first is not None and node.op_type == "EmbedLayerNormalization":
            dims = (*first, self.shapes[node.input[2]][-1])
            self.same(node.output[0], node.input[2], dims)
            return
        self.same(node.output[0], node.input[0], dims)

    def _evaluate(self, node: Any) -> None:
        names = [name for name in node.input if name]
        made: Any = []
        if node.op_type in ("Shape", "Size") and node.input[0] in self.shapes:
            given = {one.name: one.i for one in node.attribute}
            shape = self.shapes[node.input[0]][given.get("start", 0) : given.get("end")]
            made = [np.array(shape if node.op_type == "Shape" else prod(shape), dtype=np.int64)]
        elif (
            node.domain in ("", "ai.onnx")
            and all(name in self.values for name in names)
            and not node.op_type.startswith(_RANDOM)
            and all(prod(self.shapes.get(name, ())) <= _SMALL for name in node.output)
        ):
            graph = helper.make_graph(
                [node],
                "one",
                [helper.make_value_info(name, self._types[name]) for name in dict.fromkeys(names)],
                [helper.make_empty_tensor_value_info(name) for name in node.output if name],
            )
            feeds = {name: self.values[name] for name in names}
            try:
                made = ReferenceEvaluator(graph, opsets={"": self._version}).run(None, feeds)
            except Exception:  # its own, numpy's: the shape that was inferred is all that is known
                made = []
        for name, value in zip((name for name in node.output if name), made, strict=False):
            array = np.asarray(value)
            if array.size <= _SMALL and array.dtype != object:
                self.set(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                self.values[name] = array
                self.fixed.add(name)


def _filled(sizes: Sequence[int]) -> tuple[int, ...]:
    """Dims with a size where there is none: one row, the sides of an image, or else 64."""
    image = len(sizes) == 4 and sizes[1] in _CHANNELS and max(sizes[2:]) <= 0
    free = (1, 1, _SIDE, _SIDE) if image else (1, *[FREE_DIM] * len(sizes))[: len(sizes)]
    return tuple(size if size > 0 else other for size, other in zip(sizes, free, strict=True))
