"""The module that models import as ``triton_python_backend_utils``.

Names, arguments and messages are those of Triton's Python backend, so that a ``model.py`` runs
unchanged. It is ordinary Python: a model can be debugged and tested without a server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from interlace.core.request import CallContext
from interlace.formats.python_backend.auto_complete import ModelConfig
from interlace.formats.python_backend.datatypes import (
    DATATYPES,
    TRITON_STRING_TO_NUMPY,
    TYPES,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from interlace.formats.python_backend.errors import (
    TritonError,
    TritonModelException,
    integer,
    json_parameters,
    text,
    wrong_type,
)
from interlace.formats.python_backend.logger import Logger
from interlace.formats.python_backend.metrics import Metric, MetricFamily, MetricKind
from interlace.formats.python_backend.open_responses import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    ResponseState,
)
from interlace.formats.runner import Array, TypedArray

#: Names of other modules that models find here, too.
__all__ = [
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "Logger",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2
TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_GPU: Final = 2


class Tensor:
    """A named tensor in the memory of the host."""

    def __init__(self, name: str, array: Array) -> None:
        """``array`` may be of any numeric type, of ``bytes`` or ``str`` objects, or of text.

        Raises:
            TypeError: it is no NumPy array, or ``name`` no text.
            TritonModelException: it is of a type that Triton does not have, or ``name`` is empty.
        """
        if not isinstance(array, np.ndarray):
            raise wrong_type(f"tensor '{name}'", "a numpy array", array)
        if array.dtype.kind == "U":
            array = np.char.encode(array, "utf-8").astype(object)
        elif array.dtype.kind == "S":
            array = array.astype(object)
        if array.dtype not in DATATYPES:
            raise TritonModelException(f"tensor '{name}': numpy type {array.dtype} has no datatype")
        self._name = text(name, "name of a tensor")
        if not name:
            raise TritonModelException("the name of a tensor cannot be empty")
        self._value = TypedArray(DATATYPES[array.dtype], np.asarray(array, order="C"))

    @classmethod
    def of(cls, name: str, value: TypedArray) -> Tensor:
        """A tensor of any datatype; BF16 as its bits."""
        tensor = cls.__new__(cls)
        tensor._name, tensor._value = name, value
        return tensor

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Tensor:
        """A tensor from a DLPack capsule, or from an object that exports one.

        Raises:
            TritonModelException: it is neither, or its elements are not in C order.
        """
        import torch

        if not (hasattr(tensor, "__dlpack__") or type(tensor).__name__ == "PyCapsule"):
            raise TritonModelException(f"tensor '{name}': expected DLPack, got {tensor!r}")
        held = torch.from_dlpack(tensor).detach()
        if not held.is_contiguous():
            raise TritonModelException(f"DLPack tensor '{name}' is not contiguous in C order")
        bf16 = held.dtype == torch.bfloat16
        made = cls(name, (held.view(torch.uint16) if bf16 else held).cpu().numpy())
        if bf16:
            made._value = TypedArray("BF16", made._value.array)
        return made

    @property
    def value(self) -> TypedArray:
        """The array with its v2 datatype."""
        return self._value

    @property
    def contents(self) -> TypedArray:
        """As ``value``, for one who only reads it while ``execute`` runs."""
        return self.value

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def as_numpy(self) -> Array:
        """The tensor as an array; BYTES as an array of ``bytes`` objects.

        Raises:
            TritonModelException: BF16, which NumPy does not have.
        """
        if self.value.datatype == "BF16":
            raise TritonModelException(
                f"tensor dtype is bf16 and cannot be converted to numpy: '{self._name}', use DLPack"
            )
        return self.value.array

    def shape(self) -> list[int]:
        """The size of each dim, rows included."""
        return list(self.contents.array.shape)

    def triton_dtype(self) -> int:
        """The number of the data type, as ``triton_to_numpy_type`` takes it."""
        datatype = self.contents.datatype
        return 14 if datatype == "BF16" else TYPES.index(datatype) + 1

    def is_cpu(self) -> bool:
        """Whether the tensor is in host memory: always."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule that shares the tensor's memory.

        Raises:
            TritonModelException: BYTES.
        """
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.value.datatype == "BYTES":
            raise TritonModelException(f"tensor '{self._name}' of strings has no DLPack form")
        if self.value.datatype != "BF16":
            return self.value.array.__dlpack__(**options)
        import torch

        return torch.from_numpy(self.value.array).view(torch.bfloat16).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class ReceivedTensor(Tensor):
    """An input of a request. Models may write into it: it is copied when it is first read."""

    def __init__(self, name: str, value: TypedArray, open: Callable[[], bool]) -> None:
        """An array that cannot be written to lies where it was received, while it is ``open``."""
        self._name, self._value = name, value
        self._open = open

    @property
    def value(self) -> TypedArray:
        """The array with its v2 datatype, which may be written to.

        Raises:
            TritonModelException: the request has ended, and it was not read before.
        """
        datatype, array = self._value
        if not array.flags.writeable:
            self._value = TypedArray(datatype, self.contents.array.copy())
        return self._value

    @property
    def contents(self) -> TypedArray:
        """As ``value``, for one who only reads it while ``execute`` runs."""
        if not (self._open() or self._value.array.flags.writeable):
            raise TritonModelException(f"input '{self._name}' is read after its request has ended")
        return self._value


class InferenceTrace:
    """The trace of a request, which the server keeps itself."""

    def get_context(self) -> str | None:
        """What the client says of its trace: nothing."""
        return None


class InferenceRequest:
    """A request as ``execute`` receives it. Its inputs are valid until ``execute`` returns.

    Models make requests to others of a class that extends it (``python_backend.calls``).
    """

    _inputs: dict[str, Tensor]
    _outputs: list[str]
    _context: CallContext
    _cancelled: Callable[[], bool]
    _responses: ResponseState
    _release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    @classmethod
    def received(
        cls,
        inputs: Mapping[str, TypedArray],
        outputs: Sequence[str],
        context: CallContext,
        cancelled: Callable[[], bool],
        responses: ResponseState,
    ) -> InferenceRequest:
        """A request of a client that asks for these outputs."""
        made = cls.__new__(cls)
        open = responses.open
        made._inputs = {name: ReceivedTensor(name, value, open) for name, value in inputs.items()}
        made._outputs = list(outputs)
        made._context = context
        made._cancelled = cancelled
        made._responses = responses
        return made

    def inputs(self) -> list[Tensor]:
        """The inputs that the client gave."""
        return list(self._inputs.values())

    def input(self, name: str) -> Tensor | None:
        """The input of that name; ``None`` if the client left it out."""
        return self._inputs.get(name)

    def request_id(self) -> str:
        """The client's name for the request; may be empty."""
        return self._context.id

    def correlation_id(self) -> int | str:
        """The sequence that the client says the request belongs to; 0 for none."""
        given: int | str = self._parameters().get("sequence_id", 0)
        return given

    def requested_output_names(self) -> set[str]:
        """The outputs that the client asks for."""
        return set(self._outputs)

    def parameters(self) -> str:
        """The client's parameters as JSON."""
        given = self._parameters()
        own = ("sequence_id", "sequence_start", "sequence_end", "timeout")
        left = {name: one for name, one in given.items() if name not in own}
        return json.dumps(left, separators=(",", ":"))

    def timeout(self) -> int:
        """The time limit in us that the client gave the request; 0 for none."""
        given: int = self._parameters().get("timeout", 0)
        return given

    def flags(self) -> int:
        """Whether the request starts or ends its sequence, as ``TRITONSERVER_REQUEST_FLAG_...``."""
        given = self._parameters()
        start = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START * bool(given.get("sequence_start"))
        return start | TRITONSERVER_REQUEST_FLAG_SEQUENCE_END * bool(given.get("sequence_end"))

    def is_cancelled(self) -> bool:
        """Whether the client went away, or reads no responses."""
        return self._cancelled()

    def trace(self) -> InferenceTrace:
        """The request's trace, for requests to other models."""
        return InferenceTrace()

    def get_response_sender(self) -> ResponseSender:
        """What responds to the request, in any thread and also after ``execute`` returned."""
        self._responses.used = True
        return ResponseSender(self._responses, self._cancelled)

    def set_release_flags(self, flags: int) -> None:
        """With ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE``, ``execute`` receives it once more.

        Models with ``iterative_sequence`` may set it before ``execute`` returns.
        """
        self._release_flags = integer(flags, "flags")

    @property
    def rescheduled(self) -> bool:
        """Whether ``execute`` is to receive it once more, and returns ``None`` in its place."""
        return bool(self._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def again(self, inputs: Mapping[str, TypedArray]) -> InferenceRequest:
        """The request as ``execute`` receives it once more: not at the start of its sequence.

        These ``inputs`` replace those of the same names.
        """
        open = self._responses.open
        self._inputs |= {name: ReceivedTensor(name, value, open) for name, value in inputs.items()}
        given = {**self._parameters(), "sequence_start": False}
        self._context = CallContext(self._context.id, json.dumps(given))
        self._release_flags, self._responses.used = TRITONSERVER_REQUEST_RELEASE_ALL, False
        return self

    @property
    def responds(self) -> bool:
        """Whether a sender was taken: ``execute`` returns ``None`` in its place."""
        return self._responses.used

    def _parameters(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self._context.parameters or "{}")
        return read


class ResponseSender:
    """Responds to one request: once, or any number of times if the model is decoupled."""

    def __init__(self, responses: ResponseState, cancelled: Callable[[], bool]) -> None:
        self._responses = responses
        self._cancelled = cancelled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or with ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` the last or none.

        A client that reads slowly makes it wait.

        Raises:
            TritonModelException: after the last one, or with neither; of a model that is not
                decoupled anything but one response.
            TypeError: it is no response, or ``flags`` no integer.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise wrong_type("response", "pb_utils.InferenceResponse", response)
        flags = integer(flags, "flags")
        state, final = self._responses, bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if wrong := state.wrong(response, flags):
            raise TritonModelException(wrong)
        state.closed = final
        state.sent += response is not None
        state.send(response, final)

    def is_cancelled(self) -> bool:
        """Whether the client went away, or reads no responses."""
        return self._cancelled()


def tensors(given: Iterable[Tensor], what: str) -> list[Tensor]:
    """Tensors as a list.

    Raises:
        TypeError: it is no list of tensors.
        TritonModelException: ``None`` is in it, as in Triton.
    """
    try:
        held = list(given)
    except TypeError:
        raise wrong_type(what, "a list of pb_utils.Tensor", given) from None
    for one in held:
        if not isinstance(one, Tensor):
            wrong = wrong_type(what, "pb_utils.Tensor", one)
            raise TritonModelException(str(wrong)) if one is None else wrong
    return held


class InferenceResponse:
    """The answer to one request: outputs, or an error."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """``parameters`` are sent beside the outputs.

        Raises:
            TypeError: ``output_tensors`` are no list of tensors, or ``error`` is no error.
            TritonModelException: ``None`` among the outputs, or a parameter of another type than
                bool, int and str.
        """
        self._outputs = tensors(output_tensors, "output_tensors")
        self._error = TritonError(error) if isinstance(error, str) else error
        if self._error is not None and not isinstance(self._error, TritonError):
            raise wrong_type("error", "pb_utils.TritonError", error)
        self._parameters = json_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Why the request failed."""
        return self._error

    def parameters(self) -> str:
        """What the response says besides tensors, as JSON."""
        return self._parameters or "{}"

    @property
    def sent_parameters(self) -> str:
        """As ``parameters()``; empty for nothing."""
        return self._parameters


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of that name; ``None`` if the client left it out."""
    return inference_request.input(name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output of that name; ``None`` if it has none."""
    tensors = inference_response.output_tensors()
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration's entry of an input; ``None`` if it has none."""
    return next((one for one in model_config.get("input", ()) if one["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The configuration's entry of an output; ``None`` if it has none."""
    return next((one for one in model_config.get("output", ()) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the model sends any number of responses to a request."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled"))
