"""TensorRT plans on a GPU: the engine on the same memory and stream.

A module of its own: ``tensorrt`` is there where somebody installed it. It follows the API of
TensorRT 10, and has run on a stand-in for that only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import tensorrt as trt
import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.device.cuda.backend.tensors import TORCH_TYPES
from interlace.formats.opened import DeclaredSignature, OpenedModel

_EAGER_BECAUSE: Final = "TensorRT launches its kernels itself"
_DATATYPES: Final = {
    "BOOL": "BOOL", "UINT8": "UINT8", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64",
    "HALF": "FP16", "BF16": "BF16", "FLOAT": "FP32",
}  # fmt: skip
_LARGEST: Final = 2  #: of the least, the usual and the largest shape that a plan is built for


def open_plan(model: Model, device: str) -> OpenedModel:
    """Open a plan, whose tensors are those of the model's description.

    Raises:
        RepositoryError: it is of another GPU or version, or has other tensors.
    """
    source = str(model.source)
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(
        model.source.read_bytes()
    )
    if engine is None:
        found = f"a plan that TensorRT {trt.__version__} cannot run on this GPU"
        raise RepositoryError(source, found, "one that it built on such a GPU, or the ONNX model")
    _check(engine, model, source)
    return OpenedModel(
        PlanCall(engine, model.signature.outputs, device),
        {},
        DeclaredSignature(source),
        eager_because=_EAGER_BECAUSE,
    )


def _check(engine: Any, model: Model, source: str) -> None:
    signature = model.signature
    inputs = {spec.name: spec for spec in signature.inputs}
    described = {**inputs, **{spec.name: spec for spec in signature.outputs}}
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    if set(names) != described.keys():
        raise RepositoryError(source, f"tensors {sorted(names)}", f"{sorted(described)}")
    for name in names:
        spec, dims = described[name].own, tuple(engine.get_tensor_shape(name))
        found = _DATATYPES.get(engine.get_tensor_dtype(name).name, "a type of no v2 datatype")
        wanted = (-1, *spec.dims) if signature.batched else spec.dims
        fits = len(dims) == len(wanted) and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(dims, wanted, strict=True)
        )
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        if found != spec.datatype or not fits or is_input != (name in inputs):
            which = "input" if is_input else "output"
            is_now = f"{which} '{name}' of {found} {list(dims)}"
            as_stated = f"as config.pbtxt says: {spec.datatype} {list(wanted)}"
            raise RepositoryError(source, is_now, as_stated)
        if is_input and signature.batched:
            rows = engine.get_tensor_profile_shape(name, 0)[_LARGEST][0]
            if rows < signature.max_batch:
                found = f"a plan for at most {rows} rows"
                raise RepositoryError(source, found, f"max_batch_size: {rows} in config.pbtxt")


class PlanCall:
    """Runs the plan on tensors where they lie. Each stream has an execution context of its own."""

    def __init__(self, engine: Any, outputs: tuple[TensorSpec, ...], device: str) -> None:
        self._engine = engine
        self._outputs = {spec.name: TORCH_TYPES[spec.datatype] for spec in outputs}
        self._device = torch.device(device)
        self._contexts: dict[int, Any] = {}

    def __call__(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        stream = 0
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
        if stream not in self._contexts:
            self._contexts[stream] = self._engine.create_execution_context()
        context = self._contexts[stream]
        kept = {name: value.contiguous() for name, value in values.items()}
        for name, value in kept.items():
            if not context.set_input_shape(name, tuple(value.shape)):
                raise ValueError(f"input '{name}': no plan for shape {list(value.shape)}")
            context.set_tensor_address(name, value.data_ptr())
        found = {}
        for name, dtype in self._outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape:
                raise ValueError(f"output '{name}': its shape {list(shape)} depends on values")
            found[name] = torch.empty(shape, dtype=dtype, device=self._device)
            context.set_tensor_address(name, found[name].data_ptr())
        if not context.execute_async_v3(stream):
            raise RuntimeError("TensorRT could not launch the plan")
        return found  # memory of ``kept`` is given away in the order of the same stream
