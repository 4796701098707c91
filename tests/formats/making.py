"""Small models on disk, one way of making them for each format."""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.tensor import Signature, TensorSpec

UNKNOWN = Signature((), (), False, 0)
F32 = onnx.TensorProto.FLOAT


def a_model(format: Format, folder: Path, signature: Signature = UNKNOWN, **changes: Any) -> Model:
    """A model whose files are in ``folder``; its digest is the folder's name."""
    return Model(
        changes.pop("name", "m"),
        1,
        format,
        str(folder),
        folder.name,
        signature,
        ServiceTerms(100.0),
        **changes,
    )


def served(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Signature:
    return Signature(tuple(inputs), tuple(outputs), True, 8)


def write_onnx(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """A graph as ``model.onnx`` in a new folder."""
    folder.mkdir(exist_ok=True)
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    return folder


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def identity_onnx(folder: Path, kind: int, *shape: int | str) -> Path:
    node = helper.make_node("Identity", ["x"], ["y"])
    return write_onnx(folder, [node], [value("x", kind, *shape)], [value("y", kind, *shape)])


def layers_onnx(folder: Path, sizes: Sequence[int], seed: int = 0) -> Path:
    """x -> MatMul -> Relu -> ... with a weight between each two sizes."""
    random = np.random.default_rng(seed)
    nodes, constants, last = [], {}, "x"
    for place, (wide, deep) in enumerate(pairwise(sizes)):
        weight = (random.standard_normal((wide, deep)) / wide**0.5).astype(np.float32)
        constants[f"w{place}"] = weight
        nodes.append(helper.make_node("MatMul", [last, f"w{place}"], [f"p{place}"]))
        last = f"r{place}"
        nodes.append(helper.make_node("Relu", [f"p{place}"], [last]))
    ends = value("x", F32, "N", sizes[0]), value(last, F32, "N", sizes[-1])
    return write_onnx(folder, nodes, ends[:1], ends[1:], constants)


class Net(torch.nn.Module):
    """Two inputs, a dict of outputs; buffers of each kind."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(width, width)
        self.register_buffer("shift", torch.full((width,), 0.5))
        self.register_buffer("scale", torch.full((width,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x) * self.scale + self.shift
        return {"y": y * mask, "sum": y.sum(-1)}


def write_torchscript(folder: Path, module: torch.nn.Module, freeze: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(module.eval())
        script = torch.jit.freeze(script) if freeze else script
        torch.jit.save(script, str(folder / "model.pt"))
    return folder


def write_exported(folder: Path, module: torch.nn.Module, arguments: Any, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), arguments, **options)
        torch.export.save(program, folder / "model.pt2")
    return folder


def write_factory(folder: Path, code: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(code)
    return folder
