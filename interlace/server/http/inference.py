"""Inference over HTTP: a body in the arena to a call, a reply to a response."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from interlace.core.errors import ServeError, bad_input
from interlace.core.request import Reply, Request
from interlace.core.tensor import Tensor
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.plane import failure
from interlace.server.http.arena_body import ArenaBody, land, take
from interlace.server.http.compression import pack
from interlace.server.http.held import Held
from interlace.server.http.input_tensors import (
    InputGatherer,
    check_json,
    lying,
    room,
    write_length,
    wrong_size,
)
from interlace.server.http.raw_body import decode_raw
from interlace.server.http.reply_body import ReplyBody, ReplyEncoder, large_texts, order, plain_json
from interlace.server.http.request_head import ABSENT, RequestHead
from interlace.server.http.request_json import DecodedRequest
from interlace.server.http.responses import JSON, OCTETS, head_of
from interlace.server.model_table import ServedModel
from interlace.server.tensor_json import BINARY_ONLY

if TYPE_CHECKING:
    from interlace.server.http.connection import HttpConnection
    from interlace.server.http.inference_handler import InferenceHandler

#: Replies up to this size are copied into one piece and sent at once; larger ones are not copied.
COPY_BYTES: Final = 32 * 1024
#: From this size on a JSON reply is compressed for a client that merely takes compression.
PACK_BYTES: Final = 1024
#: From this size on that is done beside the loop.
PACK_BESIDE_BYTES: Final = 64 * 1024


class ReplyStart:
    """The start of a plain reply, response head and JSON, for outputs of the shapes in ``key``."""

    __slots__ = ("bytes", "key", "nbytes", "order")

    def __init__(self, key: object, order: tuple[int, ...], start: bytes, nbytes: int) -> None:
        self.key = key
        self.order = order
        self.bytes = start
        self.nbytes = nbytes


class Inference:
    """One inference between its body and its response; holds the arena slots of its inputs."""

    __slots__ = (
        "_connection", "_decoded", "_door", "_head", "_request", "_served", "gone", "held",
    )  # fmt: skip

    def __init__(
        self, door: InferenceHandler, connection: HttpConnection, head: RequestHead
    ) -> None:
        self._door = door
        self._connection = connection
        self._head = head
        self._decoded: DecodedRequest
        self._served: ServedModel | None = None  # looked up only where the reply needs it
        self._request: Request | None = None
        self.held = Held(door.arena, door.budget)
        self.gone = False  #: the client is

    def start(self, body: ArenaBody | bytes) -> None:
        """Make the call.

        Raises:
            ServeError: the body is wrong, or there is no room for it.
        """
        door, head = self._door, self._head
        landing = self._land(body)
        if landing is None:
            assert isinstance(body, bytes)
            decoded = door.decoded(head.names, body, False)
        elif head.json_length:
            decoded = door.decoded(head.names, landing.json(), True)
        else:
            decoded = decode_raw(self._look_up().model, landing.length)
            write_length(door.arena, landing)
            self._call(decoded, landing)
            return
        self.begin(decoded, landing)

    def begin(self, decoded: DecodedRequest, landing: ArenaBody | None) -> None:
        """Make the call of a body that was decoded elsewhere; ``landing`` has binary data behind.

        Raises:
            ServeError: the body is wrong, or there is no room for it.
        """
        if landing is not None and decoded.binary_bytes != landing.length - landing.json_length:
            raise wrong_size(decoded, landing)
        self._call(decoded, landing)

    def _call(self, decoded: DecodedRequest, landing: ArenaBody | None) -> None:
        self._decoded = decoded
        if not decoded.plain or self._head.accept_asked:
            self._check_outputs()
        self.call(landing)

    def call(self, landing: ArenaBody | None) -> None:
        """Hand the decoded call to the data plane."""
        decoded, names = self._decoded, self._head.names
        if landing is not None and decoded.lying is not None:
            inputs = lying(decoded.lying, landing)
        else:
            door = self._door
            slot = take(door.arena, room(decoded.sources))
            self.held.own(slot)
            gathering = InputGatherer(door.arena, door.regions, landing)
            inputs = gathering.tensors(decoded.sources, slot)
        call = InferenceCall(
            names[0],
            names[1] if len(names) > 1 else "",
            decoded.id,
            inputs,
            decoded.wanted,
            decoded.parameters,
            None,
            decoded.form,
        )
        self._request = self._door.plane.infer(call, self.reply, self.refuse, self.give_up)

    def refuse(self, error: ServeError) -> None:
        """Answer with an error."""
        self.held.drop()
        if not self.gone:
            self._connection.fail(error)

    def give_up(self, error: ServeError) -> None:
        """Answer a request that still runs with an error; its reply frees what is held."""
        if not self.gone:
            self.gone = True
            self._connection.fail(error)

    def abandon(self) -> None:
        """The client is gone; the reply still comes and frees what is held."""
        self.gone = True
        if self._request is not None:
            self._door.plane.cancel(self._request)

    def reply(self, reply: Reply) -> None:
        """Answer with a reply. Never raises: the runtime has other requests to answer."""
        error = failure(reply)
        try:
            if error is None and not self.gone:
                self._answer(reply)
                return
        except ServeError as found:
            error = found
        except Exception as found:
            error = self._door.faults.refusal(found, "an inference")
        self.end(reply, error)

    def end(self, reply: Reply, error: ServeError | None) -> None:
        """Answer a reply that cannot be sent with an error, if one is given."""
        self._done(reply)
        if not self.gone and error is not None:
            self._connection.fail(error)

    def _land(self, body: ArenaBody | bytes) -> ArenaBody | None:
        if type(body) is ArenaBody:
            self.held.own(body.offset)
            check_json(body.json_length, body.length)
            return body
        json_length = self._head.json_length
        if json_length == ABSENT:
            return None
        assert isinstance(body, bytes)
        check_json(json_length, len(body))
        landing = land(self._door.arena, body, json_length)
        self.held.own(landing.offset)
        return landing

    def _look_up(self) -> ServedModel:
        if self._served is None:
            names = self._head.names
            version = names[1] if len(names) > 1 else ""
            self._served = self._door.table.resolve(names[0], version)
        return self._served

    def _check_outputs(self) -> None:
        """Refuse before the model runs what its reply could not carry."""
        decoded = self._decoded
        wanted = {target.name: target for target in decoded.targets}
        for spec in self._look_up().model.signature.outputs:
            target = wanted.get(spec.name)
            if target is None:
                as_json = not wanted and not decoded.binary_default
            else:
                as_json = not (decoded.binary(target) or target.classes or target.region)
                if target.region is not None:
                    self._door.regions.check(*target.region)
            if as_json and spec.datatype in BINARY_ONLY:
                raise bad_input(
                    f"output '{spec.name}': {spec.datatype} has no JSON form; ask for binary data"
                )

    def _answer(self, reply: Reply) -> None:
        if not self._decoded.plain or self._head.accept_asked:
            self._answer_encoded(reply)
            return
        outputs = reply.outputs
        start = self._start(reply.request.model, outputs)
        view = self._door.view
        views = [view(outputs[i].span) for i in start.order]
        if start.nbytes > COPY_BYTES:
            self._connection.respond_parts(start.bytes, views, partial(self._done, reply))
            return
        response = b"".join((start.bytes, *views))
        self._done(reply)
        self._connection.respond(response)

    def _start(self, model: str, outputs: Sequence[Tensor]) -> ReplyStart:
        key = (model, [(t[0], t[1], t[2], t[3][2]) for t in outputs])
        start = self._decoded.reply
        if type(start) is ReplyStart and start.key == key:
            return start
        chosen = order(self._decoded, outputs)
        shapes = tuple(key[1][i] for i in chosen)
        json = plain_json(model, self._decoded.id, shapes)
        nbytes = len(json) + sum(shape[3] for shape in shapes)
        header = f"Inference-Header-Content-Length: {len(json)}\r\n"
        head = head_of(200, OCTETS, nbytes, header)
        fresh = self._decoded.reply = ReplyStart(key, chosen, head + json, nbytes)
        return fresh

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        """The body of a reply that is not plain; ``texts`` are outputs that are JSON already."""
        outputs = [reply.outputs[i] for i in order(self._decoded, reply.outputs)]
        views = [self._door.view(tensor.span) for tensor in outputs]
        encoder = ReplyEncoder(self._decoded, self._look_up().model, self._door.regions, texts)
        return encoder.encode(outputs, views)

    def _answer_encoded(self, reply: Reply) -> None:
        large = large_texts(self._decoded, reply.outputs)
        if large:
            self._door.large.write(self, reply, large)
        else:
            self.answer_with(reply, {})

    def answer_with(self, reply: Reply, texts: Mapping[str, bytes]) -> None:
        """Answer with a reply of which some outputs are JSON already.

        Raises:
            ServeError: an output does not fit its form or its shared-memory region.
        """
        body = self.encode(reply, texts)
        header = f"Inference-Header-Content-Length: {len(body.json)}\r\n" if body.binary else ""
        parts = [body.json, *body.parts]
        nbytes = sum(map(len, parts))
        coding = self._coding(body.binary, nbytes)
        if not coding:
            self._send(reply, header, parts)
            return
        header += f"Content-Encoding: {coding}\r\n"
        if nbytes < PACK_BESIDE_BYTES:
            self._send(reply, header, [pack(parts, coding)])
            return
        loop = asyncio.get_running_loop()
        packing = loop.run_in_executor(None, pack, parts, coding)
        packing.add_done_callback(partial(self._packed, reply, header))

    def _packed(self, reply: Reply, header: str, packing: asyncio.Future[bytes]) -> None:
        self._send(reply, header, [packing.result()])

    def _coding(self, binary: bool, nbytes: int) -> str:
        # Clients name several codings by default without a thought for 600 KB of floats.
        if self._head.accept_asked or (not binary and nbytes >= PACK_BYTES):
            return self._head.accept
        return ""

    def media(self, binary: bool) -> str:
        """The content type of a reply."""
        return OCTETS if binary else JSON

    def _send(self, reply: Reply, header: str, parts: Sequence[bytes | memoryview]) -> None:
        media = self.media(header.startswith("Inference"))
        nbytes = sum(map(len, parts))
        start = head_of(200, media, nbytes, header)
        if nbytes > COPY_BYTES:
            self._connection.respond_parts(start, parts, partial(self._done, reply))
            return
        response = b"".join((start, *parts))
        self._done(reply)
        if not self.gone:
            self._connection.respond(response)

    def _done(self, reply: Reply) -> None:
        """The reply's bytes are no longer needed."""
        self._door.plane.delivered(reply)
        self.held.drop()
