"""One inference over HTTP: from a body to a call, from its reply to a response."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.request import Reply
from interlace.core.tensor import Tensor
from interlace.server.compression import pack
from interlace.server.dataplane.call import DecodedRequest, InferenceCall
from interlace.server.dataplane.inference import (
    Inference,
    InferenceContext,
    gathered,
    server_timing,
)
from interlace.server.dataplane.plane import output_order
from interlace.server.dataplane.tensor_places import OutputTarget
from interlace.server.http.bodies import (
    ArenaBody,
    check_json,
    decode_raw,
    in_place,
    raw_spans,
    write_length,
    wrong_size,
)
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import ABSENT, RequestHead
from interlace.server.http.request_json import decode_request
from interlace.server.http.responses import (
    JSON,
    OCTETS,
    TEXT_BYTES,
    ReplyBody,
    ReplyEncoder,
    head_of,
    large_texts,
    plain_start,
    with_header,
)
from interlace.server.limits import GenerationalCache, HeapBudget, HttpLimits, RouteKind
from interlace.server.model_table import ServedModel
from interlace.server.tensor_json import BINARY_ONLY, to_json
from interlace.shm.blocks import ArenaBlocks

#: JSON parts remembered, and the largest one worth remembering.
TEMPLATES_KEPT: Final = 1024
KEPT_BYTES: Final = 4096


class HttpContext(InferenceContext):
    """What inferences over HTTP share besides: limits, a budget, the JSON parts seen before."""

    def __init__(self, shared: InferenceContext, limits: HttpLimits) -> None:
        super().__init__(
            shared.plane, shared.table, shared.arena, shared.arenas, shared.regions, shared.bodies
        )
        self.limits = limits
        self.budget = HeapBudget(limits.heap_bytes)
        self._known: GenerationalCache[tuple[tuple[str, ...], bytes, bool], DecodedRequest]
        self._known = GenerationalCache(TEMPLATES_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    def decoded(self, names: tuple[str, ...], json: bytes, has_header: bool) -> DecodedRequest:
        """The meaning of a JSON part for a model, remembered by its bytes.

        Raises:
            ServeError: it is no inference request.
        """
        key = (names, json, has_header)
        found = self._known.get(key)
        if found is None:
            found = decode_request(json, has_header)
            if len(json) <= KEPT_BYTES:
                self._known.put(key, found)
        return found

    def decoded_before(self, names: tuple[str, ...], json: bytes) -> DecodedRequest | None:
        """The same, of a JSON part with binary data behind it; ``None`` if it was not seen yet."""
        return self._known.get((names, json, True))

    def model(self, names: tuple[str, ...]) -> ServedModel:
        """The deployment that a path names, with its version or without.

        Raises:
            ServeError: there is none.
        """
        return self.table.resolve(names[0], names[1] if len(names) > 1 else "")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run that on later turns of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


#: Replies up to this size are copied into one piece and sent at once; larger ones are not copied.
COPY_BYTES: Final = 32 * 1024
#: From this size on a JSON reply is compressed for a client that merely takes compression.
PACK_BYTES: Final = 1024
#: From this size on that is done in a thread.
PACK_IN_THREAD_BYTES: Final = 64 * 1024
_NOT_DECODED: Final = DecodedRequest("", (), (), {})


class HttpInference(Inference):
    """One inference between its body and its response."""

    __slots__ = ("_decoded", "_head", "_http", "_served", "_writer")

    def __init__(
        self, context: HttpContext, writer: ResponseWriter, head: RequestHead, blocks: ArenaBlocks
    ) -> None:
        super().__init__(context, blocks)
        self._http = context
        self._writer = writer
        self._head = head
        self._decoded = _NOT_DECODED
        self._served: ServedModel | None = None  # looked up only where it is needed

    # --------------------------------------------------------------------- from body to call

    def start(self, body: ArenaBody | bytes) -> None:
        """Decode a body and call the data plane; an ``ArenaBody`` lies in ``blocks``.

        Raises:
            ServeError: the body is wrong, or there is no room for it.
        """
        context, head = self._http, self._head
        if isinstance(body, bytes):
            if head.json_length == ABSENT:
                self.call(context.decoded(head.names, body, False), None)
                return
            check_json(head.json_length, len(body))
            body = self._copied(body)
        if body.json_length > body.length:
            check_json(body.json_length, body.length)
        if body.json_length:
            self.call(context.decoded(head.names, body.json(), True), body)
        else:
            write_length(context.arena, body)
            self.call(decode_raw(self._model().model, body.length), body)

    def call(self, decoded: DecodedRequest, body: ArenaBody | None) -> None:
        """Call the data plane; ``body`` has binary data, behind a JSON part if it has one.

        Raises:
            ServeError: the body is wrong, or there is no room for its tensors.
        """
        json_bytes = 0 if body is None else body.json_length
        if body is not None and json_bytes and decoded.binary_bytes != body.length - json_bytes:
            raise wrong_size(decoded, body)
        context, names = self._http, self._head.names
        self._decoded = decoded
        if not decoded.plain or self._head.accept_asked:
            self._check_outputs()
        if body is not None and decoded.in_place is not None:
            inputs = in_place(decoded.in_place, body)
        else:
            raw = raw_spans(decoded.sources, body, self.blocks)
            inputs = gathered(decoded.sources, raw, self.blocks, context.arena, context.regions)
        version = names[1] if len(names) > 1 else ""
        call = InferenceCall(
            names[0],
            version,
            decoded.id,
            inputs,
            decoded,
            None,
            self._head.elapsed_ms,
            self._head.trace,
        )
        self.ask(call, self._head.route.kind is RouteKind.GENERATE)

    def _copied(self, body: bytes) -> ArenaBody:
        copy = ArenaBody(self._context.arena, len(body), self._head.json_length)
        copy.view[:] = body
        self.blocks.take_over(copy.hand_over())
        return copy

    def _model(self) -> ServedModel:
        if self._served is None:
            self._served = self._http.model(self._head.names)
        return self._served

    def _check_outputs(self) -> None:
        """Refuse before the model runs what its reply could not carry."""
        decoded = self._decoded
        wanted = {target.name: target for target in decoded.targets}
        for spec in self._model().model.signature.outputs:
            target = wanted.get(spec.name)
            if target is None:
                if wanted:
                    continue
                target = OutputTarget(spec.name, None)
            if target.region is not None:
                self._context.regions.check(*target.region)
            if spec.datatype in BINARY_ONLY and decoded.as_json(target):
                raise bad_input(
                    f"output '{spec.name}': {spec.datatype} has no JSON form; ask for binary data"
                )

    # ------------------------------------------------------------------- from reply to response

    def answer(self, reply: Reply) -> None:
        if self._decoded.plain and not (self._head.accept_asked or reply.parameters):
            self._answer_plain(reply)
            return
        large = large_texts(self._decoded, reply.outputs)
        if large:
            self.later(self._answer_in_pieces(reply, large))
        else:
            self._answer_with(reply, {})

    def fail(self, error: ServeError) -> None:
        self._writer.fail(error)

    def check_wanted(self) -> None:
        """Go on only if there is a client to answer.

        Raises:
            ServeError: CANCELLED.
        """
        if self.gone:
            raise ServeError(Reason.CANCELLED, "the client went away")

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with that on later turns of the loop; what it raises is the answer."""
        self._http.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.refuse(self._context.errors.refusal(error, "a large inference"))

    def _answer_plain(self, reply: Reply) -> None:
        outputs = reply.outputs
        start = plain_start(self._decoded, reply.request.model, outputs)
        view = self._context.view
        views = [view(outputs[i].span) for i in start.order]
        data = start.data
        if reply.stages:
            data = with_header(data, f"Server-Timing: {server_timing(reply.stages)}".encode())
        self._send(data, views, start.nbytes)

    async def _answer_in_pieces(self, reply: Reply, large: Sequence[Tensor]) -> None:
        texts = {tensor.name: await self._text(tensor) for tensor in large}
        self.check_wanted()
        self._answer_with(reply, texts)

    async def _text(self, tensor: Tensor) -> bytes:
        view, pieces = self._context.view(tensor.span), []
        for at in range(0, len(view), TEXT_BYTES):
            self.check_wanted()
            piece = to_json(tensor.name, tensor.datatype, view[at : at + TEXT_BYTES])
            pieces.append(piece[1:-1])
            await asyncio.sleep(0)
        return b"[" + b",".join(pieces) + b"]"

    def _answer_with(self, reply: Reply, texts: Mapping[str, bytes]) -> None:
        body = self.encode(reply, texts)
        header = f"Inference-Header-Content-Length: {len(body.json)}\r\n" if body.binary else ""
        if reply.stages:
            header += f"Server-Timing: {server_timing(reply.stages)}\r\n"
        media = self.media(body.binary)
        parts = [body.json, *body.parts]
        nbytes = sum(map(len, parts))
        coding = self._coding(body.binary, nbytes)
        if not coding:
            self._send(head_of(200, media, nbytes, header), parts, nbytes)
            return
        header += f"Content-Encoding: {coding}\r\n"
        if nbytes < PACK_IN_THREAD_BYTES:
            self._send_packed(media, header, pack(parts, coding))
        else:
            self.later(self._pack_in_thread(media, header, parts, coding))

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        """The body of a reply that is not plain; ``texts`` are outputs that are JSON already."""
        context, decoded = self._context, self._decoded
        outputs = [reply.outputs[i] for i in output_order(decoded.targets, reply.outputs)]
        views = [context.view(tensor.span) for tensor in outputs]
        encoder = ReplyEncoder(decoded, self._model().model, context.regions, texts)
        return encoder.encode(outputs, views, reply.parameters)

    def media(self, binary: bool) -> str:
        """The content type of a reply."""
        return OCTETS if binary else JSON

    def _coding(self, binary: bool, nbytes: int) -> str:
        # Clients name several codings by default without a thought for 600 KB of floats.
        if self._head.accept_asked or (not binary and nbytes >= PACK_BYTES):
            return self._head.accept
        return ""

    async def _pack_in_thread(
        self, media: str, header: str, parts: Sequence[bytes | memoryview], coding: str
    ) -> None:
        packed = await asyncio.get_running_loop().run_in_executor(None, pack, parts, coding)
        self._send_packed(media, header, packed)

    def _send_packed(self, media: str, header: str, packed: bytes) -> None:
        self._send(head_of(200, media, len(packed), header), [packed], len(packed))

    def _send(self, start: bytes, parts: Sequence[bytes | memoryview], nbytes: int) -> None:
        if nbytes > COPY_BYTES:
            self._writer.respond_parts(start, parts, self.release)
            return
        response = b"".join((start, *parts))
        self.release()
        if not self.gone:
            self._writer.respond(response)
