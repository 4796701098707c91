"""Calls of other models by a model's code (Triton's business logic scripting)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Final, NamedTuple

from interlace.core.errors import Reason, ServeError
from interlace.core.request import CallContext
from interlace.formats.python_backend import api
from interlace.formats.runner import CallModels, LentArray, OutgoingCall, TypedArray

#: What models import.
API_NAME: Final = "triton_python_backend_utils"
_INSIDE: Final = "BLS is supported only during the 'execute' function."
_DECODED: Final = (
    "exec(decoupled=True): a call has one response in Interlace; call models that are not decoupled"
)
_CODES: Final = {
    Reason.UNKNOWN_MODEL: api.TritonError.NOT_FOUND,
    Reason.BAD_INPUT: api.TritonError.INVALID_ARG,
    Reason.TOO_LARGE: api.TritonError.INVALID_ARG,
    Reason.UNSUPPORTED: api.TritonError.UNSUPPORTED,
    Reason.OVERLOADED: api.TritonError.UNAVAILABLE,
    Reason.DEADLINE: api.TritonError.UNAVAILABLE,
    Reason.NOT_READY: api.TritonError.UNAVAILABLE,
    Reason.QUARANTINED: api.TritonError.UNAVAILABLE,
    Reason.CANCELLED: api.TritonError.CANCELLED,
}


class PreferredMemory(NamedTuple):
    """Where outputs of a call should be. They are in host memory, whatever is preferred."""

    preferred_memory_type: int = api.TRITONSERVER_MEMORY_CPU
    preferred_device_id: int = 0


class CalledTensor(api.Tensor):
    """An output of a called model. Other calls take it by reference; reading it copies it."""

    def __init__(self, lent: LentArray) -> None:
        self.lent = lent
        self._name = lent.tensor.name
        self._copy: TypedArray | None = None

    @property
    def value(self) -> TypedArray:
        """The array with its v2 datatype, which may be written to."""
        if self._copy is None:
            datatype, array = self.lent.read()
            self._copy = TypedArray(datatype, array.copy())
        return self._copy

    @property
    def contents(self) -> TypedArray:
        """As ``value``; where it lies, unless it was read before."""
        return self.lent.read() if self._copy is None else self._copy

    def shape(self) -> list[int]:
        """The size of each dim, rows included."""
        return list(self.lent.tensor.shape)

    @property
    def passed_on(self) -> TypedArray | LentArray:
        """The tensor as an input of another call; a copy, once it was read."""
        return self.lent if self._copy is None else self._copy


class CallHook:
    """How the code of one model calls others: by ``call`` while ``execute`` runs.

    ``resumed`` is called when its code goes on after others may have run in this process.
    """

    def __init__(self, resumed: Callable[[], None]) -> None:
        self.call: CallModels | None = None
        self.resumed = resumed


class CallableRequest(api.InferenceRequest):
    """A request to another model."""

    calls: ClassVar[CallHook]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[api.Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: object = None,
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        """``timeout`` is in us; 0 leaves the caller's deadline. ``trace`` has no effect.

        Raises:
            TritonModelException: no model is named, or an input is no ``Tensor``.
        """
        if not model_name:
            raise api.TritonModelException("InferenceRequest: expected model_name")
        for tensor in inputs:
            if not isinstance(tensor, api.Tensor):
                found = type(tensor).__name__
                raise api.TritonModelException(f"inputs: expected pb_utils.Tensor, got {found}")
        given = dict(parameters or {})
        if correlation_id:
            given["sequence_id"] = correlation_id
            given["sequence_start"] = bool(flags & api.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
            given["sequence_end"] = bool(flags & api.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        self._model_name = model_name
        self._version = "" if model_version < 0 else str(model_version)
        self._timeout_us = timeout
        self._inputs = {tensor.name(): tensor for tensor in inputs}
        self._outputs = list(requested_output_names)
        self._context = CallContext(request_id, json.dumps(given) if given else "")
        self._cancelled = bool  # never

    def exec(self, decoupled: bool = False) -> api.InferenceResponse:
        """Call the model and wait. A failure is an error of the response.

        Raises:
            TritonModelException: not during ``execute``, or ``decoupled``.
        """
        try:
            outputs = self._begin(decoupled)
            return self._response(outputs.result())
        except (ServeError, MemoryError, ValueError) as error:
            return _failed(error)
        finally:
            self.calls.resumed()

    async def async_exec(self, decoupled: bool = False) -> api.InferenceResponse:
        """Call the model; other calls of the same code may be under way. As ``exec``."""
        try:
            outputs = self._begin(decoupled)
            return self._response(await asyncio.wrap_future(outputs))
        except (ServeError, MemoryError, ValueError) as error:
            return _failed(error)
        finally:
            self.calls.resumed()

    def _begin(self, decoupled: bool) -> Any:
        call = self.calls.call
        if decoupled or call is None:
            raise api.TritonModelException(_DECODED if decoupled else _INSIDE)
        inputs = {
            name: tensor.passed_on if isinstance(tensor, CalledTensor) else tensor.value
            for name, tensor in self._inputs.items()
        }
        wanted = tuple(self._outputs)
        return call(
            OutgoingCall(
                self._model_name, self._version, inputs, wanted, self._context, self._timeout_us
            )
        )

    def _response(self, outputs: Mapping[str, LentArray]) -> api.InferenceResponse:
        names = self._outputs or list(outputs)
        return api.InferenceResponse([CalledTensor(outputs[name]) for name in names])


def _failed(error: Exception) -> api.InferenceResponse:
    if not isinstance(error, ServeError):
        return api.InferenceResponse(error=api.TritonError(str(error)))
    code = _CODES.get(error.reason, api.TritonError.INTERNAL)
    return api.InferenceResponse(error=api.TritonError(error.detail, code))


def api_module(calls: CallHook) -> ModuleType:
    """``triton_python_backend_utils`` for one model, whose calls go through ``calls``."""
    module = ModuleType(API_NAME, api.__doc__)
    public = {name: value for name, value in vars(api).items() if not name.startswith("_")}
    request = type("InferenceRequest", (CallableRequest,), {"calls": calls})
    vars(module).update(public, InferenceRequest=request, PreferredMemory=PreferredMemory)
    return module
