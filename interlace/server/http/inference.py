"""One inference over HTTP: from a body to a call, from its reply to a response."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.request import Reply, Request
from interlace.core.tensor import Tensor
from interlace.server.compression import pack
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.plane import failure, output_order
from interlace.server.heap_budget import HeapReservation
from interlace.server.http.bodies import ArenaBody, decode_raw
from interlace.server.http.decoded_request import DecodedRequest, OutputTarget
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.inference_context import InferenceContext
from interlace.server.http.input_tensors import (
    check_json,
    gathered,
    in_place,
    write_length,
    wrong_size,
)
from interlace.server.http.request_head import ABSENT, RequestHead
from interlace.server.http.responses import (
    JSON,
    OCTETS,
    TEXT_BYTES,
    ReplyBody,
    ReplyEncoder,
    head_of,
    large_texts,
    plain_start,
)
from interlace.server.model_table import ServedModel
from interlace.server.tensor_json import BINARY_ONLY, to_json
from interlace.shm.blocks import ArenaBlocks

#: Replies up to this size are copied into one piece and sent at once; larger ones are not copied.
COPY_BYTES: Final = 32 * 1024
#: From this size on a JSON reply is compressed for a client that merely takes compression.
PACK_BYTES: Final = 1024
#: From this size on that is done in a thread.
PACK_IN_THREAD_BYTES: Final = 64 * 1024
_NOT_DECODED: Final = DecodedRequest("", (), (), {})


class Inference:
    """One inference between its body and its response.

    It owns ``blocks``, in which its inputs lie, ``reserved`` heap, and later the memory of its
    reply's outputs. ``_release`` gives back all three, once, however the inference ends.
    """

    __slots__ = (
        "_context", "_decoded", "_head", "_reply", "_request", "_served", "_writer", "blocks",
        "gone", "reserved",
    )  # fmt: skip

    def __init__(
        self,
        context: InferenceContext,
        writer: ResponseWriter,
        head: RequestHead,
        blocks: ArenaBlocks,
    ) -> None:
        self._context = context
        self._writer = writer
        self._head = head
        self._decoded = _NOT_DECODED
        self._served: ServedModel | None = None  # looked up only where it is needed
        self._request: Request | None = None
        self._reply: Reply | None = None
        self.blocks = blocks
        self.reserved: HeapReservation | None = None
        self.gone = False  #: no response is wanted any more: the client left, or was given an error

    # --------------------------------------------------------------------- from body to call

    def start(self, body: ArenaBody | bytes) -> None:
        """Decode a body and call the data plane; an ``ArenaBody`` lies in ``blocks``.

        Raises:
            ServeError: the body is wrong, or there is no room for it.
        """
        context, head = self._context, self._head
        if isinstance(body, bytes):
            if head.json_length == ABSENT:
                self.call(context.decoded(head.names, body, False), None)
                return
            check_json(head.json_length, len(body))
            body = self._copied(body)
        check_json(body.json_length, body.length)
        if body.json_length:
            self.call(context.decoded(head.names, body.json(), True), body)
        else:
            write_length(context.arena, body)
            decoded = decode_raw(self._model().model, body.length)
            self._call(decoded, body)

    def call(self, decoded: DecodedRequest, body: ArenaBody | None) -> None:
        """Call the data plane; ``body`` has binary data behind its JSON part.

        Raises:
            ServeError: the body is wrong, or there is no room for its tensors.
        """
        if body is not None and decoded.binary_bytes != body.length - body.json_length:
            raise wrong_size(decoded, body)
        self._call(decoded, body)

    def _call(self, decoded: DecodedRequest, body: ArenaBody | None) -> None:
        context, names = self._context, self._head.names
        self._decoded = decoded
        if not decoded.plain or self._head.accept_asked:
            self._check_outputs()
        if body is not None and decoded.in_place is not None:
            inputs = in_place(decoded.in_place, body)
        else:
            inputs = gathered(decoded.sources, body, self.blocks, context.arena, context.regions)
        call = InferenceCall(
            names[0],
            names[1] if len(names) > 1 else "",
            decoded.id,
            inputs,
            decoded.outputs,
            decoded.parameters,
            None,
            decoded.template,
            self._head.elapsed_ms,
        )
        self._request = context.plane.infer(call, self.reply, self.refuse, self.give_up)

    def _copied(self, body: bytes) -> ArenaBody:
        copy = ArenaBody(self._context.arena, len(body), self._head.json_length)
        copy.view[:] = body
        self.blocks.take_over(copy.hand_over())
        return copy

    def _model(self) -> ServedModel:
        if self._served is None:
            self._served = self._context.model(self._head.names)
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

    def reply(self, reply: Reply) -> None:
        """Answer with a reply. Never raises: the runtime has other requests to answer."""
        self._reply = reply
        error = failure(reply)
        try:
            if error is not None:
                self.refuse(error)
            elif self.gone:
                self._release()
            elif self._decoded.plain and not self._head.accept_asked:
                self._answer_plain(reply)
            else:
                self._answer_encoded(reply)
        except ServeError as found:
            self.refuse(found)
        except Exception as found:
            self.refuse(self._context.errors.refusal(found, "an inference"))

    def refuse(self, error: ServeError) -> None:
        """Answer with an error; whatever is held is given back."""
        self._release()
        if not self.gone:
            self._writer.fail(error)

    def give_up(self, error: ServeError) -> None:
        """Answer a request that still runs with an error; its reply frees what is held."""
        if not self.gone:
            self.gone = True
            self._writer.fail(error)

    def abandon(self) -> None:
        """The client is gone; the reply still comes and frees what is held."""
        self.gone = True
        if self._request is not None:
            self._context.plane.cancel(self._request)

    def check_wanted(self) -> None:
        """Go on only if there is a client to answer.

        Raises:
            ServeError: CANCELLED.
        """
        if self.gone:
            raise ServeError(Reason.CANCELLED, "the client went away")

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with that on later turns of the loop; what it raises is the answer."""
        self._context.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ServeError as error:
            self.refuse(error)
        except Exception as error:
            self.refuse(self._context.errors.refusal(error, "a large inference"))

    def _answer_plain(self, reply: Reply) -> None:
        outputs = reply.outputs
        start = plain_start(self._decoded, reply.request.model, outputs)
        view = self._context.view
        views = [view(outputs[i].span) for i in start.order]
        self._send(start.data, views, start.nbytes)

    def _answer_encoded(self, reply: Reply) -> None:
        large = large_texts(self._decoded, reply.outputs)
        if large:
            self.later(self._answer_in_pieces(reply, large))
        else:
            self._answer_with(reply, {})

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
        outputs = [reply.outputs[i] for i in output_order(decoded.outputs, reply.outputs)]
        views = [context.view(tensor.span) for tensor in outputs]
        encoder = ReplyEncoder(decoded, self._model().model, context.regions, texts)
        return encoder.encode(outputs, views)

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
            self._writer.respond_parts(start, parts, self._release)
            return
        response = b"".join((start, *parts))
        self._release()
        if not self.gone:
            self._writer.respond(response)

    def _release(self) -> None:
        """Give back the reply's memory, the inputs' blocks and the reserved heap; twice is once."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._context.plane.delivered(reply)
        self.blocks.free()
        if self.reserved is not None:
            self.reserved.release()
