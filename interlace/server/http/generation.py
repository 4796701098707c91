"""Triton's generate extension: tensors as plain JSON values, responses as server-sent events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.request import PartialResponse, Reply
from interlace.core.tensor import element_count
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.inference import HttpContext, HttpInference
from interlace.server.http.request_head import RequestHead
from interlace.server.http.request_json import FIELDS, decode_generate
from interlace.server.http.responses import (
    EVENTS,
    EVENTS_END,
    EVENTS_HEAD,
    ReplyBody,
    event,
    response,
)
from interlace.server.tensor_json import to_json
from interlace.shm.blocks import ArenaBlocks

_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for models that "
    "generate varying number of responses"
)


class Generation(HttpInference):
    """One inference whose body names inputs and parameters side by side."""

    __slots__ = ("_only",)

    def __init__(
        self, context: HttpContext, writer: ResponseWriter, head: RequestHead, blocks: ArenaBlocks
    ) -> None:
        super().__init__(context, writer, head, blocks)
        self._only = b""  #: the response of a decoupled model, until it is known to be the last

    def start(self, body: ArenaBody | bytes) -> None:
        assert isinstance(body, bytes), "large bodies are decoded in another process"
        self.call(decode_generate(self._model().model.signature, body), None)

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        json = self.values(reply, reply.request.model, texts)
        return ReplyBody(json, [], False)

    def values(
        self, response_: Reply | PartialResponse, model: str, texts: Mapping[str, bytes] = {}
    ) -> bytes:
        """The JSON of a response of a deployment; ``texts`` are outputs that are JSON already."""
        key = DeploymentKey.parse(model)
        values: dict[str, object] = {"model_name": key.name, "model_version": str(key.version)}
        if self._decoded.id:
            values["id"] = self._decoded.id
        values.update(FIELDS.decode(response_.parameters or "{}"))
        for tensor in response_.outputs:
            text = texts.get(tensor.name) or to_json(
                tensor.name, tensor.datatype, self._context.view(tensor.span)
            )
            one = element_count(tensor.shape) == 1
            values[tensor.name] = msgspec.Raw(text[1:-1] if one else text)
        return msgspec.json.encode(values)

    def send(self, response_: PartialResponse, model: str) -> None:
        """Keep the one response until it is known to be the only one."""
        said = response_.outputs or response_.parameters
        if said and not self._only:
            self._only = self.values(response_, model)
        elif said or not self._only:
            raise ServeError(Reason.BACKEND, _NOT_ONE)
        if response_.final:
            self._writer.respond(response(200, self._only))
        response_.release()


class GenerationStream(Generation):
    """The same with each response as an event, sent when the client has taken the one before."""

    __slots__ = ("_begun", "_queue", "_sending")

    def __init__(
        self, context: HttpContext, writer: ResponseWriter, head: RequestHead, blocks: ArenaBlocks
    ) -> None:
        super().__init__(context, writer, head, blocks)
        self._begun = self._sending = False
        self._queue: deque[tuple[PartialResponse, str] | ServeError] = deque()

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        body = super().encode(reply, texts)
        return ReplyBody(b"data: " + body.json + b"\n\n", [], False)

    def media(self, binary: bool) -> str:
        return EVENTS

    def send(self, response_: PartialResponse, model: str) -> None:
        self._queue.append((response_, model))
        self._send_next()

    def fail(self, error: ServeError) -> None:
        if self._begun or self._queue:
            self._queue.append(error)
            self._send_next()
        else:
            super().fail(error)

    def _send_next(self) -> None:
        while self._queue and not self._sending:
            first = self._queue.popleft()
            if isinstance(first, ServeError):
                self._finish(event(msgspec.json.encode({"error": first.detail})))
                return
            response_, model = first
            data = self._event(response_, model)
            if response_.final:
                response_.release()
                self._finish(data)
                return
            self._sending = True
            start, self._begun = b"" if self._begun else EVENTS_HEAD, True
            self._writer.stream(start + data, partial(self._taken, response_))

    def _event(self, response_: PartialResponse, model: str) -> bytes:
        """The event of a response; nothing of a last one that says nothing."""
        if response_.final and not (response_.outputs or response_.parameters):
            return b""
        try:
            return event(self.values(response_, model))
        except Exception as error:  # the client reads it, and the stream goes on
            refusal = self._context.errors.refusal(error, "a response")
            return event(msgspec.json.encode({"error": refusal.detail}))

    def _taken(self, response_: PartialResponse) -> None:
        response_.release()
        self._sending = False
        self._send_next()

    def _finish(self, data: bytes) -> None:
        self._writer.respond((b"" if self._begun else EVENTS_HEAD) + data + EVENTS_END)
