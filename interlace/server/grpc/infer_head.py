"""Heads of infer requests (names, shapes, parameters): each is parsed once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from interlace.core.errors import ServeError, bad_input
from interlace.core.tensor import frame
from interlace.proto.messages import ModelInferRequest
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.tensor_places import (
    InputSource,
    OutputTarget,
    Parameter,
    RegionSpan,
)
from interlace.server.grpc.infer_wire import malformed
from interlace.server.limits import GenerationalCache

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
        return frame(elements)
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
    return bad_input(f"input '{name[:128]}': {detail}")


_HEADS_KEPT: Final = 2048
_KEPT_BYTES: Final = 4096


class InferHeads:
    """Heads by their bytes and the sizes of raw tensors."""

    def __init__(self) -> None:
        self._known: GenerationalCache[tuple[bytes, tuple[int, ...]], DecodedRequest]
        self._known = GenerationalCache(_HEADS_KEPT)

    def find(self, head: bytes, sizes: tuple[int, ...]) -> DecodedRequest:
        """What a request with this head and raw tensors of these sizes says.

        Raises:
            ServeError: BAD_INPUT, the head is malformed or does not fit its raw tensors.
        """
        key = (head, sizes)
        found = self._known.get(key)
        if found is None:
            found = read_head(head)
            check_count(found, len(sizes))
            if len(head) <= _KEPT_BYTES and not any(source.data for source in found.sources):
                self._known.put(key, found)
        return found


def read_head(data: bytes) -> DecodedRequest:
    """Parse a head.

    Raises:
        ServeError: BAD_INPUT, what is wrong with it.
    """
    try:
        message = ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise malformed(str(error)) from error
    sources = tuple([_source(each) for each in message.inputs])
    if any(source.data is not None for source in sources):
        if any(source.region is not None for source in sources):
            raise bad_input("some inputs have contents and some lie in shared memory: use one way")
        for source in sources:
            if source.data is None:
                raise bad_input(f"input '{source.name}' has no contents, and others have")
    return DecodedRequest(
        "",
        sources,
        tuple([_target(each) for each in message.outputs]),
        {name: parameter_value(name, each) for name, each in message.parameters.items()},
        message.model_name,
        message.model_version,
    )


def check_count(head: DecodedRequest, raw_count: int) -> None:
    """Refuse the head of a message with so many raw tensors if it has not as many inputs for them.

    Raises:
        ServeError: BAD_INPUT.
    """
    expected = sum(source.follows for source in head.sources)
    if raw_count == expected:
        return
    typed = [each.name for each in head.sources if each.data is not None or each.at is not None]
    if typed:
        raise bad_input(
            f"contents field must not be specified when using raw_input_contents for '{typed[0]}' "
            f"for model '{head.model}'"
        )
    raise bad_input(
        f"expected {expected} raw_input_contents for {len(head.sources)} inputs of model "
        f"'{head.model}', got {raw_count}"
    )


def _source(given: Any) -> InputSource:
    region = _region(f"input '{given.name}'", given.parameters)
    data, nbytes = None, 0 if region is None else region.nbytes
    if given.HasField("contents"):
        data = typed_bytes(given.name, given.datatype, given.contents)
        nbytes = len(data)
    return InputSource(given.name, given.datatype, tuple(given.shape), 0, nbytes, data, region)


def _target(wanted: Any) -> OutputTarget:
    region = _region(f"output '{wanted.name}'", wanted.parameters)
    return OutputTarget(wanted.name, True, _classes(wanted), region)


def _region(what: str, parameters: Any) -> RegionSpan | None:
    if "shared_memory_region" not in parameters:
        return None
    region = parameters["shared_memory_region"].string_param
    if "shared_memory_byte_size" not in parameters:
        raise bad_input(f"{what}: shared_memory_region without shared_memory_byte_size")
    nbytes = parameters["shared_memory_byte_size"].int64_param
    offset = (
        parameters["shared_memory_offset"].int64_param
        if ("shared_memory_offset" in parameters)
        else 0
    )
    if nbytes < 0 or offset < 0:
        raise bad_input(
            f"{what}: shared memory offset {offset} and size {nbytes} must not be negative"
        )
    return RegionSpan(region, offset, nbytes)


def _classes(output: Any) -> int:
    if "classification" not in output.parameters:
        return 0
    count = int(output.parameters["classification"].int64_param)
    if count < 0:
        raise bad_input(f"output '{output.name}': classification must be at least 0, got {count}")
    return count


def parameter_value(name: str, parameter: Any) -> Parameter:
    """The value of a request parameter.

    Raises:
        ServeError: BAD_INPUT, it has none.
    """
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise bad_input(f"parameter '{name}' has no value")
    value: Parameter = getattr(parameter, kind)
    return value
