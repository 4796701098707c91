"""The generate extension: tensors as plain JSON values, one reply or one server-sent event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import bad_input
from interlace.core.model import Model
from interlace.core.request import Reply
from interlace.core.tensor import TensorSpec, element_count
from interlace.server.dataplane.call import Parameter
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.decoded_request import DecodedRequest, InputSource
from interlace.server.http.inference import Inference
from interlace.server.http.responses import ReplyBody
from interlace.server.tensor_json import DEPTH_MAX, MALFORMED, decoded, to_bytes, to_json

EVENTS: Final = "text/event-stream; charset=utf-8"
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parameters: Final = msgspec.json.Decoder(dict[str, Parameter])
_parameter: Final = msgspec.json.Decoder(Parameter)
_text: Final = msgspec.json.Decoder(str)


class Generation(Inference):
    """One inference whose body names inputs and parameters side by side."""

    def start(self, body: ArenaBody | bytes) -> None:
        assert isinstance(body, bytes), "bodies of generate are small"
        self._call(decode_generate(self._model().model, body), None)

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        key = DeploymentKey.parse(reply.request.model)
        values: dict[str, object] = {"model_name": key.name, "model_version": str(key.version)}
        if self._decoded.id:
            values["id"] = self._decoded.id
        for tensor in reply.outputs:
            text = texts.get(tensor.name) or to_json(
                tensor.name, tensor.datatype, self._context.view(tensor.span)
            )
            one = element_count(tensor.shape) == 1
            values[tensor.name] = msgspec.Raw(text[1:-1] if one else text)
        json = msgspec.json.encode(values)
        return ReplyBody(b"data: " + json + b"\n\n" if self._head.route.stream else json, [], False)

    def media(self, binary: bool) -> str:
        return EVENTS if self._head.route.stream else super().media(binary)


def decode_generate(model: Model, body: bytes) -> DecodedRequest:
    """Inputs, id and parameters of a generate request.

    A value is one element or nested arrays; the batch dimension is added in front. What names no
    input is a parameter.

    Raises:
        ServeError: BAD_INPUT, naming the field.
    """
    try:
        fields = decoded(_fields, body)
        id = _text.decode(fields.pop("id", b'""'))
        parameters = _parameters.decode(fields.pop("parameters", b"{}"))
    except MALFORMED as error:
        raise bad_input(f"failed to parse the request JSON: {error}") from error
    batched = model.signature.batched
    sources = tuple(
        _source(spec, bytes(fields.pop(spec.name)), batched)
        for spec in model.signature.inputs
        if spec.name in fields
    )
    return DecodedRequest(id, sources, (), {**_others(fields), **parameters})


def _source(spec: TensorSpec, value: bytes, batched: bool) -> InputSource:
    if value.startswith(b"["):
        shape = _shape(spec.name, value)
    else:
        value = b"[" + value + b"]"
        shape = (1,) * len(spec.dims)
    if batched and len(shape) == len(spec.dims):
        shape = (1, *shape)
    data = to_bytes(spec.name, spec.datatype, shape, value)
    return InputSource(spec.name, spec.datatype, shape, 0, len(data), data)


def _shape(name: str, value: bytes) -> tuple[int, ...]:
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
