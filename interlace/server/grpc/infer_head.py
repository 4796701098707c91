"""Heads of infer requests: parsed once each, numbered, and made known to the main process once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from interlace.core.errors import Reason, ServeError
from interlace.proto.messages import ModelInferRequest
from interlace.server.door.frames import ForgetFrame, FormFrame, Value
from interlace.server.grpc.infer_wire import malformed
from interlace.server.grpc.typed_contents import typed_bytes

_FORMS: Final = 4096
_CACHED_HEAD_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class SharedMemoryRange:
    """Bytes inside a region of client shared memory."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class InferHead:
    """What a request says besides its id and raw tensors.

    ``typed`` holds the bytes of inputs that came as typed contents (``None`` if none did), and
    ``places`` where inputs lie in client shared memory, by position. ``targets`` says where outputs
    go to client shared memory, by name.
    """

    model: str
    version: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, int], ...]
    parameters: dict[str, Value]
    typed: tuple[bytes, ...] | None
    places: dict[int, SharedMemoryRange]
    targets: dict[str, SharedMemoryRange]


@dataclass(frozen=True, slots=True)
class InferTemplate:
    """A head and the sizes of its tensors, under the number that the main process knows."""

    number: int
    head: InferHead
    raw_count: int


class InferTemplates:
    """Forms by head and sizes. ``tell`` gives the main process each definition before its use."""

    def __init__(self, tell: Callable[[FormFrame | ForgetFrame], None]) -> None:
        self._tell = tell
        self._known: dict[tuple[bytes, tuple[int, ...]], InferTemplate] = {}
        self._next = 0
        self._forgotten = 0  #: the last number that the main process has forgotten

    def find(self, head: bytes, raws: list[int]) -> InferTemplate:
        """The form of a scanned request.

        Raises:
            ServeError: BAD_INPUT, the head is malformed or does not fit its raw tensors.
        """
        key = (head, tuple(raws[1::2]))
        form = self._known.get(key)
        if form is not None:
            return form
        parsed = read_head(head)
        form = self._define(parsed, len(raws) // 2)
        if len(head) <= _CACHED_HEAD_BYTES and parsed.typed is None:
            self._known[key] = form
        return form

    def current(self, form: InferTemplate) -> InferTemplate:
        """The form under a number that the main process knows now: its request may have waited."""
        if form.number > self._forgotten:
            return form
        return self._define(form.head, form.raw_count)

    def _define(self, head: InferHead, raw_count: int) -> InferTemplate:
        _check_count(head, raw_count)
        if self._next - self._forgotten >= _FORMS:
            self._known.clear()
            self._forgotten = self._next
            self._tell(ForgetFrame())
        self._next += 1
        self._tell(
            FormFrame(
                self._next, head.model, head.version, head.inputs, head.outputs, head.parameters
            )
        )
        return InferTemplate(self._next, head, raw_count)


def read_head(data: bytes) -> InferHead:
    """Parse a head.

    Raises:
        ServeError: BAD_INPUT, what is wrong with it.
    """
    try:
        message = ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise malformed(str(error)) from error
    typed = [each for each in message.inputs if each.HasField("contents")]
    values = tuple(typed_bytes(each.name, each.datatype, each.contents) for each in typed)
    places = {
        i: place
        for i, each in enumerate(message.inputs)
        if (place := _place(f"input '{each.name}'", each.parameters)) is not None
    }
    if typed and len(typed) + len(places) != len(message.inputs):
        missing = next(each.name for each in message.inputs if not each.HasField("contents"))
        raise _bad(f"input '{missing}' has no contents, and others have")
    if typed and places:
        raise _bad("some inputs have contents and some lie in shared memory: use one way")
    targets = {
        each.name: place
        for each in message.outputs
        if (place := _place(f"output '{each.name}'", each.parameters)) is not None
    }
    return InferHead(
        message.model_name,
        message.model_version,
        tuple((each.name, each.datatype, tuple(each.shape)) for each in message.inputs),
        tuple((each.name, _classes(each)) for each in message.outputs),
        {name: _value(name, each) for name, each in message.parameters.items()},
        values if typed else None,
        places,
        targets,
    )


def _check_count(head: InferHead, raw_count: int) -> None:
    if head.typed is not None and raw_count:
        name = head.inputs[0][0]
        raise _bad(
            f"contents field must not be specified when using raw_input_contents for '{name}' "
            f"for model '{head.model}'"
        )
    expected = 0 if head.typed is not None else len(head.inputs) - len(head.places)
    if raw_count != expected:
        raise _bad(
            f"expected {expected} raw_input_contents for {len(head.inputs)} inputs of model "
            f"'{head.model}', got {raw_count}"
        )


def _place(what: str, parameters: Any) -> SharedMemoryRange | None:
    if "shared_memory_region" not in parameters:
        return None
    region = parameters["shared_memory_region"].string_param
    if "shared_memory_byte_size" not in parameters:
        raise _bad(f"{what}: shared_memory_region without shared_memory_byte_size")
    nbytes = parameters["shared_memory_byte_size"].int64_param
    offset = (
        parameters["shared_memory_offset"].int64_param
        if ("shared_memory_offset" in parameters)
        else 0
    )
    if nbytes < 0 or offset < 0:
        raise _bad(f"{what}: shared memory offset {offset} and size {nbytes} must not be negative")
    return SharedMemoryRange(region, offset, nbytes)


def _classes(output: Any) -> int:
    if "classification" not in output.parameters:
        return 0
    count = int(output.parameters["classification"].int64_param)
    if count < 0:
        raise _bad(f"output '{output.name}': classification must be at least 0, got {count}")
    return count


def _value(name: str, parameter: Any) -> Value:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise _bad(f"parameter '{name}' has no value")
    value: Value = getattr(parameter, kind)
    return value


def _bad(detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, detail)
