"""ONNX graphs: ``model.onnx`` through onnxruntime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, Signature, TensorSpec
from interlace.formats.arrays import client_outputs, model_inputs, objects, text_of
from interlace.formats.machine import release_free_memory
from interlace.formats.onnx_sharing import (
    OptimisedModel,
    open_optimised,
    open_shared,
    optimised_model,
    session_options,
)
from interlace.formats.runner import Array
from interlace.formats.session_weights import SessionWeights

_PROVIDERS: Final = ["CPUExecutionProvider"]
_BF16: Final = 16  # TensorProto.BFLOAT16

_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": BYTES,
}


def open_runner(
    model: Model, threads: int, weights_dir: str | None, profile: str = ""
) -> OnnxRunner:
    """Open an ONNX model; with ``weights_dir`` its optimised form is shared and mapped.

    With ``profile`` the times of nodes are written to a file whose name begins so.

    Raises:
        RepositoryError: no output is a tensor, or an input is none.
    """
    source = model.source
    optimised = optimised_model(source, model, weights_dir)
    session, cold, warnings = _open(optimised, lambda: _options(model, threads, profile))
    release_free_memory()
    optimised = replace(optimised, warnings=(*optimised.warnings, *warnings))
    return OnnxRunner(session, model, optimised, cold, str(source))


def _open(
    optimised: OptimisedModel, options: Callable[[], Any]
) -> tuple[Any, SessionWeights | None, tuple[str, ...]]:
    if not optimised.shared_bytes:
        path = str(optimised.path)
        return ort.InferenceSession(path, options(), providers=_PROVIDERS), None, ()
    try:
        return *open_shared(optimised, options()), ()
    except (OSError, ValueError) as error:
        session = open_optimised(optimised.path, options())
        return session, None, (f"weights stay in memory: {error}",)


def _options(model: Model, threads: int, profile: str) -> Any:
    options = session_options(threads)
    # Plans of memory are kept for every shape that comes: there must not be any number of those.
    options.enable_mem_pattern = all(-1 not in spec.dims for spec in model.signature.inputs)
    options.enable_profiling = bool(profile)
    options.profile_file_prefix = profile
    return options


class OnnxRunner:
    """Runs one session; inputs are read in place."""

    def __init__(
        self,
        session: Any,
        model: Model,
        optimised: OptimisedModel,
        cold: SessionWeights | None,
        source: str,
    ) -> None:
        self._session = session
        self.cold = cold
        self.signature, skipped = describe(session, source)
        self._served = model.signature if model.signature.outputs else self.signature
        self._datatypes = {spec.name: spec.datatype for spec in self._served.inputs}
        self._outputs = [spec.name for spec in self._served.outputs]
        specs = (*self._served.inputs, *self._served.outputs)
        self._bf16 = any(spec.datatype == "BF16" for spec in specs)
        self._optimised = optimised
        self.warnings = (*optimised.warnings, *skipped)

    @property
    def resident_bytes(self) -> int:
        return self._optimised.total_bytes

    @property
    def shared_bytes(self) -> int:
        return self._optimised.shared_bytes

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        feed = {
            name: _to_text(name, array) if self._datatypes[name] == BYTES else array
            for name, array in model_inputs(inputs, self._served).items()
        }
        results = self._run_bf16(feed) if self._bf16 else self._session.run(self._outputs, feed)
        outputs = {
            name: _to_bytes(array) if array.dtype == np.object_ else array
            for name, array in zip(self._outputs, results, strict=True)
        }
        rows = next(iter(inputs.values())).shape[0] if self._served.batched else 1
        return client_outputs(outputs, self._served, rows)

    def end_profiling(self) -> str:
        """The file of nodes' times, those of all runs until now."""
        path: str = self._session.end_profiling()
        return path

    def close(self) -> None:
        if self.cold is not None:
            self.cold.close()
        self._session = None

    def _run_bf16(self, feed: Mapping[str, Array]) -> list[Array]:
        # numpy has no BF16, so values go in and come out as onnxruntime's own.
        make = ort.OrtValue.ortvalue_from_numpy
        values = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BF16)
            if self._datatypes[name] == "BF16"
            else make(array)
            for name, array in feed.items()
        }
        return [_read(value) for value in self._session.run_with_ort_values(self._outputs, values)]


def _read(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    buffer = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
    return np.frombuffer(buffer, np.uint16).reshape(value.shape()).copy()


def _to_text(name: str, array: Array) -> Array:
    return objects(text_of(name, array, "onnxruntime")).reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    return objects([element.encode() for element in array.ravel()]).reshape(array.shape)


def describe(session: Any, source: str) -> tuple[Signature, tuple[str, ...]]:
    """What a session says of itself, and which outputs are left out, in words.

    Raises:
        RepositoryError: no output is a tensor, or an input is none.
    """
    inputs = [_spec(node) for node in session.get_inputs()]
    outputs = [_spec(node) for node in session.get_outputs()]
    for node, spec in zip(session.get_inputs(), inputs, strict=True):
        if spec is None:
            raise RepositoryError(source, f"input '{node.name}' of type {node.type}", "a tensor")
    known = [spec for spec in outputs if spec is not None]
    if not known:
        raise RepositoryError(source, "no output that is a tensor", "at least one")
    skipped = tuple(
        f"{source}: output '{node.name}' of type {node.type} is not served: it is no tensor"
        for node, spec in zip(session.get_outputs(), outputs, strict=True)
        if spec is None
    )
    optional = [_spec(node, optional=True) for node in session.get_overridable_initializers()]
    specs = [spec for spec in inputs if spec is not None]
    batched = bool(specs) and all(spec.dims[:1] == (-1,) for spec in (*specs, *known))
    overridable = tuple(spec for spec in optional if spec is not None)
    cut = 1 if batched else 0
    inputs_without_rows, outputs_without_rows = _without_rows(specs, cut), _without_rows(known, cut)
    signature = Signature(inputs_without_rows, outputs_without_rows, batched, 0, overridable)
    return signature, skipped


def _without_rows(specs: list[TensorSpec], cut: int) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(s.name, s.datatype, s.dims[cut:], s.optional, None, s.free_names[cut:])
        for s in specs
    )


def _spec(node: Any, optional: bool = False) -> TensorSpec | None:
    datatype = _DATATYPES.get(node.type)
    if datatype is None:
        return None
    dims = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
    names = tuple(
        size if isinstance(size, str) else ""
        for size, dim in zip(node.shape, dims, strict=True)
        if dim < 0
    )
    return TensorSpec(node.name, datatype, dims, optional, None, names if any(names) else ())
