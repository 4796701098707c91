"""ONNX models on a GPU: onnxruntime on the same memory and stream.

A module of its own: processes that open no ONNX model need no onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import onnxruntime as ort
import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, Signature
from interlace.device.cuda.backend.tensors import TORCH_TYPES, tensor_at
from interlace.formats.arrays import NUMPY_TYPES
from interlace.formats.onnx import describe
from interlace.formats.opened import DeclaredSignature, OpenedModel

_CUDA: Final = "CUDAExecutionProvider"
_BF16: Final = 16  # TensorProto.BFLOAT16
_EAGER_BECAUSE: Final = "onnxruntime launches its kernels itself"


def open_onnx(model: Model, device: str) -> OpenedModel:
    """Open an ONNX model; its weights are loaded for each lane, when it first runs there.

    Raises:
        RepositoryError: onnxruntime here cannot use a GPU; or as ``describe``.
    """
    if torch.device(device).type == "cuda" and _CUDA not in ort.get_available_providers():
        raise RepositoryError(
            model.path,
            "an ONNX model, and an onnxruntime without its CUDA provider",
            "pip install onnxruntime-gpu in place of onnxruntime, or a format that torch runs",
        )
    source = str(model.source)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    said, _ = describe(session, source)
    spoken = DeclaredSignature(source, said.inputs, said.outputs, said.batched)
    return OpenedModel(OnnxCall(source, said, device), {}, spoken, eager_because=_EAGER_BECAUSE)


class OnnxCall:
    """Runs the model on tensors where they lie. onnxruntime ties a session to one stream."""

    def __init__(self, source: str, signature: Signature, device: str) -> None:
        self._source = source
        inputs = (*signature.inputs, *signature.overridable)
        self._types = {spec.name: spec.datatype for spec in inputs}
        self._outputs = {
            spec.name: TORCH_TYPES[spec.datatype]
            for spec in signature.outputs
            if spec.datatype != BYTES
        }
        self._device = torch.device(device)
        self._sessions: dict[int, Any] = {}
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        session = self._session()
        binding = session.io_binding()
        where = self._device.type, self._device.index or 0
        kept = {name: value.contiguous() for name, value in values.items()}
        for name, value in kept.items():
            datatype = self._types[name]
            element = _BF16 if datatype == "BF16" else NUMPY_TYPES[datatype]
            binding.bind_input(name, *where, element, list(value.shape), value.data_ptr())
        for name in self._outputs:
            binding.bind_output(name, *where)
        session.run_with_iobinding(binding, self._options)
        found = zip(self._outputs, binding.get_outputs(), strict=True)
        return {name: self._copied(name, value) for name, value in found}

    def _copied(self, name: str, value: Any) -> torch.Tensor:
        # onnxruntime's memory goes with the value, in the order of the same stream.
        shape, dtype = tuple(value.shape()), self._outputs[name]
        return tensor_at(value.data_ptr(), shape, dtype, str(self._device)).clone()

    def _session(self) -> Any:
        stream = 0
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
            own = {"device_id": self._device.index or 0, "user_compute_stream": str(stream)}
            providers = [(_CUDA, {**own, "use_tf32": "0"})]
        if stream not in self._sessions:
            self._sessions[stream] = ort.InferenceSession(self._source, providers=providers)
        return self._sessions[stream]
