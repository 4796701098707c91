"""Calls of other models by a model's code (Triton's business logic scripting)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import TIMEOUT_MAX
from types import ModuleType
from typing import ClassVar, Final, NamedTuple

import numpy as np

from interlace.core.errors import Reason, ServeError
from interlace.core.request import CallContext
from interlace.formats.python_backend import api
from interlace.formats.python_backend.errors import integer, json_parameters, text, wrong_type
from interlace.formats.runner import (
    CallModels,
    LentArray,
    LentResponse,
    OutgoingCall,
    TypedArray,
)

#: What models import.
API_NAME: Final = "triton_python_backend_utils"
_INSIDE: Final = "BLS is supported only during the 'execute' function."
#: How long after its timeout a call is given up: the server's own answer says more.
_LATE_S: Final = 0.05
_CODES: Final = {
    Reason.NOT_FOUND: api.TritonError.NOT_FOUND,
    Reason.UNKNOWN_MODEL: api.TritonError.NOT_FOUND,
    Reason.BAD_INPUT: api.TritonError.INVALID_ARG,
    Reason.TOO_LARGE: api.TritonError.INVALID_ARG,
    Reason.UNSUPPORTED: api.TritonError.UNSUPPORTED,
    Reason.OVERLOADED: api.TritonError.UNAVAILABLE,
    Reason.DEADLINE: api.TritonError.UNAVAILABLE,
    Reason.NOT_READY: api.TritonError.UNAVAILABLE,
    Reason.QUARANTINED: api.TritonError.UNAVAILABLE,
    Reason.CANCELLED: api.TritonError.CANCELLED,
    Reason.ALREADY_EXISTS: api.TritonError.ALREADY_EXISTS,
    Reason.UNKNOWN: api.TritonError.UNKNOWN,
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

    It loads others by ``control``, also while ``initialize`` runs.
    ``resumed`` is called when its code goes on after others may have run in this process.
    """

    def __init__(self, resumed: Callable[[], None]) -> None:
        self.call: CallModels | None = None
        self.control: CallModels | None = None
        self.resumed = resumed

    @contextmanager
    def during(self, call: CallModels | None, control: CallModels | None) -> Iterator[None]:
        """Have these for the block, and none afterwards."""
        self.call, self.control = call, control
        try:
            yield
        finally:
            self.call = self.control = None


class CallableRequest(api.InferenceRequest):
    """A request to another model."""

    calls: ClassVar[CallHook]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[api.Tensor] = (),
        requested_output_names: Iterable[str] = (),
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
            TypeError: no model is named, or an argument is of another type.
            TritonModelException: ``None`` among the inputs, or ``correlation_id`` or ``parameters``
                of another type.
        """
        self._model_name = text(model_name, "model_name")
        if not model_name:
            raise TypeError("InferenceRequest: expected model_name")
        version = integer(model_version, "model_version", -(2**63))
        self._version = "" if version < 0 else str(version)
        self._timeout_us = integer(timeout, "timeout")
        self._inputs = {one.name(): one for one in api.tensors(inputs, "inputs")}
        names = requested_output_names
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise wrong_type("requested_output_names", "a list of str", names)
        self._outputs = [text(one, "requested_output_names") for one in names]
        json_parameters(parameters)
        if not isinstance(correlation_id, int | str):
            wrong = wrong_type("correlation_id", "an int or a str", correlation_id)
            raise wrong if correlation_id is None else api.TritonModelException(str(wrong))
        self._given = {**(parameters or {})}
        if correlation_id:
            self._given["sequence_id"] = correlation_id
        if self._timeout_us:
            self._given["timeout"] = self._timeout_us
        self._id = text(request_id, "request_id")
        self.set_flags(flags)
        self._cancelled = bool  # never

    def set_flags(self, flags: int) -> None:
        """Set ``TRITONSERVER_REQUEST_FLAG_...``, which count for requests of a sequence."""
        flags = integer(flags, "flags")
        if "sequence_id" in self._given:
            start = bool(flags & api.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
            end = bool(flags & api.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
            self._given.update(sequence_start=start, sequence_end=end)
        self._context = CallContext(self._id, json.dumps(self._given) if self._given else "")

    def exec(self, decoupled: bool = False) -> api.InferenceResponse | ResponseIterator:
        """Call the model and wait, at most for its timeout. A failure is an error of the response.

        A ``decoupled`` call waits for nothing: its responses are iterated over.

        Raises:
            TritonModelException: not during ``execute``.
            TypeError: ``decoupled`` is neither true nor false.
        """
        if integer(decoupled, "decoupled"):
            return ResponseIterator(self)
        try:
            future = self.begin(decoupled=False)
            try:
                return self.response(future.result(self._limit_s))
            except TimeoutError:
                future.cancel()
                return failed(self._overdue())
        except (ServeError, MemoryError, ValueError) as error:
            return failed(error)
        finally:
            self.calls.resumed()

    async def async_exec(self, decoupled: bool = False) -> api.InferenceResponse | ResponseIterator:
        """Call the model; other calls of the same code may be under way. As ``exec``."""
        if integer(decoupled, "decoupled"):
            return ResponseIterator(self)
        try:
            answer = asyncio.wrap_future(self.begin(decoupled=False))
            return self.response(await asyncio.wait_for(answer, self._limit_s))
        except TimeoutError:
            return failed(self._overdue())
        except (ServeError, MemoryError, ValueError) as error:
            return failed(error)
        finally:
            self.calls.resumed()

    @property
    def _limit_s(self) -> float | None:
        """How long a call is waited for. What its model runs then goes on, for nobody."""
        return min(self._timeout_us / 1e6 + _LATE_S, TIMEOUT_MAX) if self._timeout_us > 0 else None

    def _overdue(self) -> ServeError:
        had = f"model '{self._model_name}' had {self._timeout_us / 1000.0:g} ms and runs still"
        return ServeError(Reason.DEADLINE, f"Request timeout expired: {had}")

    def begin(self, decoupled: bool) -> Future[LentResponse]:
        """Send the call.

        Raises:
            TritonModelException: not during ``execute``.
            ServeError, MemoryError, ValueError: it cannot be sent.
        """
        call = self.calls.call
        if call is None:
            raise api.TritonModelException(_INSIDE)
        inputs = {
            name: tensor.passed_on if isinstance(tensor, CalledTensor) else tensor.contents
            for name, tensor in self._inputs.items()
        }
        wanted = tuple(self._outputs)
        return call(
            OutgoingCall(
                self._model_name,
                self._version,
                inputs,
                wanted,
                self._context,
                self._timeout_us,
                decoupled,
            )
        )

    def response(self, lent: LentResponse) -> api.InferenceResponse:
        """A response of the model, with the outputs that were asked for."""
        given = lent.outputs
        names = [one for one in self._outputs if one in given] if self._outputs else list(given)
        parameters = json.loads(lent.parameters or "{}")
        return api.InferenceResponse(
            [CalledTensor(given[name]) for name in names], parameters=parameters
        )


class ResponseIterator:
    """The responses of a decoupled model. A failure is the error of the last one."""

    def __init__(self, request: CallableRequest) -> None:
        """Call the model. Raises ``TritonModelException`` as ``exec``."""
        self._request = request
        self._failure: Exception | None = None
        self._next: Future[LentResponse] | None = None
        try:
            self._next = request.begin(decoupled=True)
        except (ServeError, MemoryError, ValueError) as error:
            self._failure = error

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> api.InferenceResponse:
        future, failure = self._next, self._failure
        self._next = self._failure = None
        if failure is not None:
            return failed(failure)
        if future is None:
            raise StopIteration
        try:
            lent = future.result()
        except (ServeError, MemoryError, ValueError) as error:
            return failed(error)
        finally:
            self._request.calls.resumed()
        self._next = lent.follows
        return self._request.response(lent)

    def cancel(self) -> None:
        """Want no further responses; some may come."""
        if self._next is not None:
            self._next.cancel()


def failed(error: Exception) -> api.InferenceResponse:
    """A response that says why a call failed."""
    if not isinstance(error, ServeError):
        return api.InferenceResponse(error=api.TritonError(str(error)))
    code = _CODES.get(error.reason, api.TritonError.INTERNAL)
    return api.InferenceResponse(error=api.TritonError(error.detail, code))


class ModelLoader:
    """Loads and unloads models as clients do, while ``initialize`` or ``execute`` runs."""

    def __init__(self, calls: CallHook) -> None:
        self._calls = calls

    def load(
        self, model_name: str, files: Mapping[str, bytes] | None = None, config: str | None = None
    ) -> None:
        """Load or reload a model; ``config`` (JSON) overrides its configuration.

        ``files`` such as ``file:1/model.py`` stand in for its folder, and need a ``config``.

        Raises:
            TritonModelException: why it is not loaded, or not yet.
            TypeError: an argument is of another type.
        """
        contents: dict[str, TypedArray | LentArray] = {}
        if not isinstance(files, Mapping | None):
            raise api.TritonModelException(f"files: expected a dict, got {type(files).__name__}")
        for path, data in (files or {}).items():
            if not isinstance(data, bytes):
                raise wrong_type(f"files: '{path}'", "bytes", data)
            contents[text(path, "files")] = TypedArray("UINT8", np.frombuffer(data, np.uint8))
        parameters = {"config": text(config, "config")} if config else {}
        self._ask("load", model_name, parameters=parameters, files=contents)

    def unload(self, model_name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service; ``unload_dependents`` has no effect.

        Raises:
            TritonModelException: why not, or not yet.
        """
        self._ask("unload", model_name)

    def is_ready(self, model_name: str, model_version: str = "") -> bool:
        """Whether a version of a model answers requests, the newest unless one is named."""
        return self._ask("ready", model_name, text(model_version, "model_version"))

    def _ask(
        self,
        control: str,
        name: str,
        version: str = "",
        parameters: Mapping[str, str] = {},
        files: Mapping[str, TypedArray | LentArray] = {},
    ) -> bool:
        call = self._calls.control
        if call is None:
            asked = "is_model_ready" if control == "ready" else f"{control}_model"
            raise api.TritonModelException(
                f"{asked} is supported only during the 'initialize' and 'execute' functions."
            )
        context = CallContext("", json.dumps(parameters) if parameters else "")
        name = text(name, "model_name")
        try:
            call(OutgoingCall(name, version, files, (), context, 0, control=control)).result()
        except ServeError as error:
            if control == "ready":
                return False
            raise api.TritonModelException(error.detail) from error
        except (MemoryError, ValueError) as error:
            raise api.TritonModelException(str(error)) from error
        finally:
            self._calls.resumed()
        return True


def api_module(calls: CallHook, folder: str) -> ModuleType:
    """``triton_python_backend_utils`` for one model whose file lies in ``folder``."""
    module = ModuleType(API_NAME, api.__doc__)
    public = {name: value for name, value in vars(api).items() if not name.startswith("_")}
    control = ModelLoader(calls)
    request = type("InferenceRequest", (CallableRequest,), {"calls": calls})
    vars(module).update(
        public,
        InferenceRequest=request,
        PreferredMemory=PreferredMemory,
        ResponseIterator=ResponseIterator,
        InferenceResponseSender=api.ResponseSender,
        get_model_dir=lambda: folder,
        load_model=control.load,
        unload_model=control.unload,
        is_model_ready=control.is_ready,
    )
    return module
