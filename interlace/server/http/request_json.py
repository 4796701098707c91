"""The JSON of infer and generate requests: decoded, typed, and checked on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from interlace.core.errors import bad_input
from interlace.core.tensor import BYTES, ITEM_BYTES, Signature, TensorSpec, element_count
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.tensor_places import (
    InputSource,
    OutputTarget,
    Parameter,
    RegionSpan,
)
from interlace.server.tensor_json import DEPTH_MAX, MALFORMED, decoded, to_bytes

RANK_MAX: Final = 32
#: Sizes and counts from here on are refused: no tensor has them, and products overflow texts.
_SIZE_END: Final = 1 << 63
_KNOWN: Final = frozenset((*ITEM_BYTES, BYTES))
_NONE: Final[Mapping[str, Parameter]] = {}


class InferenceInput(msgspec.Struct):
    """A tensor; without ``data`` its bytes follow the JSON, or lie in shared memory."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Parameter] | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # a description has no default


class InferenceOutput(msgspec.Struct):
    """An output that is wanted."""

    name: str
    parameters: dict[str, Parameter] | None = None


class InferenceBody(msgspec.Struct):
    """The JSON part of an inference request of KServe v2."""

    inputs: list[InferenceInput]
    id: str = ""
    parameters: dict[str, Parameter] | None = None
    outputs: list[InferenceOutput] | None = None


_decoder: Final = msgspec.json.Decoder(InferenceBody)
FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parameters: Final = msgspec.json.Decoder(dict[str, Parameter])
_parameter: Final = msgspec.json.Decoder(Parameter)
_text: Final = msgspec.json.Decoder(str)


def decode_request(body: bytes | memoryview, has_header: bool) -> DecodedRequest:
    """Decode the JSON part of an inference request.

    ``has_header`` says that Inference-Header-Content-Length was given, so that binary data may
    follow.

    Raises:
        ServeError: BAD_INPUT, naming the place in the JSON, what was found and expected.
    """
    try:
        request = decoded(_decoder, body)
    except MALFORMED as error:
        raise bad_input(f"failed to parse the request JSON: {error}") from error
    sources = []
    offset = 0
    for given in request.inputs:
        source = _source(given, offset, has_header)
        if source.data is None and source.region is None:
            offset += source.nbytes
        sources.append(source)
    targets = tuple(_target(given) for given in request.outputs or ())
    parameters = _NONE if request.parameters is None else request.parameters
    _flag(parameters, "binary_data_output", "the request")
    return DecodedRequest(request.id, tuple(sources), targets, parameters)


def _source(given: InferenceInput, offset: int, has_header: bool) -> InputSource:
    name, shape = given.name, tuple(given.shape)
    if given.datatype not in _KNOWN:
        raise bad_input(
            f"input '{name}': unknown datatype '{given.datatype[:64]}'; known: "
            f"{', '.join(sorted(_KNOWN))}"
        )
    if len(shape) > RANK_MAX or any(not 0 <= size < _SIZE_END for size in shape):
        raise bad_input(
            f"input '{name}': shape {str(given.shape[:RANK_MAX])[:256]} has more than {RANK_MAX} "
            f"sizes, or one below 0 or from 2^63 on"
        )
    parameters = given.parameters or _NONE
    data = bytes(given.data)
    region = _region(parameters, f"input '{name}'")
    size = _count(parameters, "binary_data_size", f"input '{name}'")
    if (size is not None) + (region is not None) + bool(data) != 1:
        raise bad_input(
            f"input '{name}' must have exactly one of 'data', the parameter 'binary_data_size', "
            f"and the parameter 'shared_memory_region'"
        )
    if region is not None:
        return InputSource(name, given.datatype, shape, 0, region.nbytes, None, region)
    if size is not None:
        if not has_header:
            raise bad_input(
                f"input '{name}' has 'binary_data_size', but the request has no header "
                f"Inference-Header-Content-Length to say where the JSON ends"
            )
        return InputSource(name, given.datatype, shape, offset, size)
    packed = to_bytes(name, given.datatype, shape, data)
    return InputSource(name, given.datatype, shape, 0, len(packed), packed)


def _target(given: InferenceOutput) -> OutputTarget:
    parameters = given.parameters or _NONE
    where = f"output '{given.name}'"
    return OutputTarget(
        given.name,
        _flag(parameters, "binary_data", where),
        _count(parameters, "classification", where) or 0,
        _region(parameters, where),
    )


def _region(parameters: Mapping[str, Parameter], where: str) -> RegionSpan | None:
    name = parameters.get("shared_memory_region")
    if name is None:
        return None
    if not isinstance(name, str):
        raise bad_input(
            f"{where}: parameter 'shared_memory_region' must be a string, got {name!r:.64}"
        )
    nbytes = _count(parameters, "shared_memory_byte_size", where)
    if nbytes is None:
        raise bad_input(
            f"{where}: 'shared_memory_region' needs the parameter 'shared_memory_byte_size'"
        )
    return RegionSpan(name, _count(parameters, "shared_memory_offset", where) or 0, nbytes)


def _count(parameters: Mapping[str, Parameter], key: str, where: str) -> int | None:
    value = parameters.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < _SIZE_END):
        raise bad_input(
            f"{where}: parameter '{key}' must be an integer of at least 0, got {value!r:.64}"
        )
    return value


def _flag(parameters: Mapping[str, Parameter], key: str, where: str) -> bool | None:
    value = parameters.get(key)
    if value is not None and not isinstance(value, bool):
        raise bad_input(f"{where}: parameter '{key}' must be true or false, got {value!r:.64}")
    return value


def decode_generate(signature: Signature, body: bytes | memoryview) -> DecodedRequest:
    """Inputs, id and parameters of a generate request.

    A value is one element, a list of them, or nested arrays in the tensor's shape, with or without
    rows. What names no input is a parameter.

    Raises:
        ServeError: BAD_INPUT, naming the field.
    """
    try:
        fields = decoded(FIELDS, body)
        id = _text.decode(fields.pop("id", b'""'))
        parameters = _parameters.decode(fields.pop("parameters", b"{}"))
    except MALFORMED as error:
        raise bad_input(f"failed to parse the request JSON: {error}") from error
    sources = tuple(
        _given(spec, bytes(fields.pop(spec.name)), signature.batched)
        for spec in signature.inputs
        if spec.name in fields
    )
    return DecodedRequest(id, sources, (), {**_others(fields), **parameters})


def _given(spec: TensorSpec, value: bytes, batched: bool) -> InputSource:
    value = value if value.startswith(b"[") else b"[" + value + b"]"
    shape = _nested_shape(spec.name, value)
    if len(shape) == 1:
        shape = _spread(shape[0], (-1, *spec.dims) if batched else spec.dims)
    elif batched and len(shape) == len(spec.dims):
        shape = (1, *shape)
    data = to_bytes(spec.name, spec.datatype, shape, value)
    return InputSource(spec.name, spec.datatype, shape, 0, len(data), data)


def _nested_shape(name: str, value: bytes) -> tuple[int, ...]:
    try:
        nested = msgspec.json.decode(value)
    except MALFORMED as error:
        raise bad_input(f"'{name}': {error}") from error
    shape: list[int] = []
    while isinstance(nested, list):
        shape.append(len(nested))
        if not nested or len(shape) > DEPTH_MAX:
            break
        nested = nested[0]
    return tuple(shape)


def _spread(count: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims with that many elements: all beyond the fixed ones in the last free one."""
    rest = -(-count // element_count(tuple([dim for dim in dims if dim > 0])))
    shape = []
    for dim in reversed(dims):
        shape.append(rest if dim < 0 else dim)
        rest = 1 if dim < 0 else rest
    return tuple(reversed(shape))


def _others(fields: Mapping[str, msgspec.Raw]) -> dict[str, Parameter]:
    parameters = {}
    for name, value in fields.items():
        try:
            parameters[name] = _parameter.decode(value)
        except MALFORMED as error:
            raise bad_input(
                f"'{name[:128]}' is no input of the model, and as a parameter it must be a string, "
                f"number or boolean: {error}"
            ) from error
    return parameters
