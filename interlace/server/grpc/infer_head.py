"""Heads of infer requests (names, shapes, parameters): each is parsed once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from interlace.core.errors import Reason, ServeError
from interlace.proto.messages import ModelInferRequest
from interlace.server.cache import GenerationalCache
from interlace.server.dataplane.call import Parameter, RequestedOutput, RequestTemplate
from interlace.server.grpc.infer_wire import malformed

#: Datatype: the field that holds its elements, and ``array``'s code for them.
_FIELDS: Final[dict[str, tuple[str, str]]] = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}


def typed_bytes(name: str, datatype: str, contents: Any) -> bytes:
    """The elements of an ``InferTensorContents`` in the v2 binary form.

    Raises:
        ServeError: BAD_INPUT for elements in a field that is not the datatype's, or out of range.
    """
    found = _FIELDS.get(datatype)
    if found is None:
        raise _wrong_contents(
            name, f"datatype '{datatype}' has no typed contents: use raw_input_contents"
        )
    field, code = found
    others = [each.name for each, _ in contents.ListFields() if each.name != field]
    if others:
        raise _wrong_contents(
            name, f"datatype '{datatype}' belongs in contents.{field}, not in {others[0]}"
        )
    elements = getattr(contents, field)
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    return _packed(name, datatype, elements, code)


def _packed(name: str, datatype: str, elements: Sequence[Any], code: str) -> bytes:
    try:
        values = array(code, elements)
    except OverflowError as error:
        at = next(i for i, each in enumerate(elements) if not _fits(code, each))
        text = f"element {at} is {elements[at]}, which {datatype} cannot hold"
        raise _wrong_contents(name, text) from error
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _fits(code: str, value: Any) -> bool:
    try:
        array(code, (value,))
    except OverflowError:
        return False
    return True


def _wrong_contents(name: str, detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, f"input '{name[:128]}': {detail}")


_TEMPLATES: Final = 2048
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
    ``ranges`` where inputs lie in client shared memory, by position. ``targets`` says where outputs
    go to client shared memory, by name.
    """

    model: str
    version: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, int], ...]
    parameters: dict[str, Parameter]
    typed: tuple[bytes, ...] | None
    ranges: dict[int, SharedMemoryRange]
    targets: dict[str, SharedMemoryRange]


class InferTemplate:
    """What calls with the same head and the same sizes of tensors share."""

    __slots__ = ("checks", "head", "outputs", "ranked")

    def __init__(self, head: InferHead) -> None:
        self.head = head
        self.checks = RequestTemplate()
        self.outputs = tuple([RequestedOutput(name, classes) for name, classes in head.outputs])
        self.ranked = any(classes for _, classes in head.outputs)


class InferTemplates:
    """Templates by head and sizes of tensors."""

    def __init__(self) -> None:
        self._known: GenerationalCache[tuple[bytes, tuple[int, ...]], InferTemplate] = (
            GenerationalCache(_TEMPLATES)
        )

    def find(self, head: bytes, sizes: tuple[int, ...]) -> InferTemplate:
        """The template of a request with this head and raw tensors of these sizes.

        Raises:
            ServeError: BAD_INPUT, the head is malformed or does not fit its raw tensors.
        """
        key = (head, sizes)
        found = self._known.get(key)
        if found is not None:
            return found
        template = InferTemplate(checked(read_head(head), len(sizes)))
        parsed = template.head
        if len(head) <= _CACHED_HEAD_BYTES and parsed.typed is None:
            self._known.put(key, template)
        return template


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
    ranges = {
        i: found
        for i, each in enumerate(message.inputs)
        if (found := _range(f"input '{each.name}'", each.parameters)) is not None
    }
    if typed and len(typed) + len(ranges) != len(message.inputs):
        missing = next(each.name for each in message.inputs if not each.HasField("contents"))
        raise _bad(f"input '{missing}' has no contents, and others have")
    if typed and ranges:
        raise _bad("some inputs have contents and some lie in shared memory: use one way")
    targets = {
        each.name: found
        for each in message.outputs
        if (found := _range(f"output '{each.name}'", each.parameters)) is not None
    }
    return InferHead(
        message.model_name,
        message.model_version,
        tuple((each.name, each.datatype, tuple(each.shape)) for each in message.inputs),
        tuple((each.name, _classes(each)) for each in message.outputs),
        {name: _value(name, each) for name, each in message.parameters.items()},
        values if typed else None,
        ranges,
        targets,
    )


def checked(head: InferHead, raw_count: int) -> InferHead:
    """The head of a message with so many raw tensors.

    Raises:
        ServeError: BAD_INPUT, it does not fit them.
    """
    if head.typed is not None and raw_count:
        name = head.inputs[0][0]
        raise _bad(
            f"contents field must not be specified when using raw_input_contents for '{name}' "
            f"for model '{head.model}'"
        )
    expected = 0 if head.typed is not None else len(head.inputs) - len(head.ranges)
    if raw_count != expected:
        raise _bad(
            f"expected {expected} raw_input_contents for {len(head.inputs)} inputs of model "
            f"'{head.model}', got {raw_count}"
        )
    return head


def _range(what: str, parameters: Any) -> SharedMemoryRange | None:
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


def _value(name: str, parameter: Any) -> Parameter:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise _bad(f"parameter '{name}' has no value")
    value: Parameter = getattr(parameter, kind)
    return value


def _bad(detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, detail)
