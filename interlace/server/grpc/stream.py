"""One HTTP/2 stream as gRPC uses it: messages in, messages out, a status at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from interlace.core.errors import ServeError
from interlace.server.errors import GRPC_STATUS, GrpcStatus
from interlace.server.grpc.frame_writer import Buffer, FrameWriter, OnSent
from interlace.server.grpc.headers import ANSWER_HEAD, TRAILERS_OK, CallHead, trailers
from interlace.server.grpc.http2_frames import (
    CANCEL,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    PREFIX,
    STREAM_WINDOW,
    frame,
    rst_stream,
    window_update,
)
from interlace.server.limits import GrpcLimits


class MessageSink(Protocol):
    """Where a message goes whose bytes come in more than one piece."""

    def feed(self, chunk: memoryview) -> None:
        """Take a piece; the view is good only during the call."""

    def landing(self) -> memoryview | None:
        """Where the next bytes belong, if they may be received straight into place."""

    def landed(self, nbytes: int) -> None:
        """That many bytes were received into ``landing()``."""

    def finish(self) -> None:
        """The message is complete."""

    def abandon(self) -> None:
        """The rest of the message will not come: give back what was taken for it."""


class RpcCall(Protocol):
    """What a method does with a stream. It answers through the stream, now or later.

    ``streaming`` calls may stay open with nothing to say; the others owe one message.
    """

    @property
    def streaming(self) -> bool: ...

    def whole(self, message: memoryview) -> None:
        """A complete, uncompressed message; the view is good only during the call."""

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        """A message of ``nbytes`` begins, to come in pieces, or compressed."""

    def end(self) -> None:
        """The client has sent all it will."""

    def gone(self) -> None:
        """The client cancelled, or its connection broke: no answer is wanted."""


#: Answers up to this size are joined into one piece; larger ones go out by reference.
_JOINED_BYTES: Final = 16_000
_HEAD_FRAME: Final = frame(HEADERS, END_HEADERS, 0, ANSWER_HEAD)[:5]
_TAIL_FRAME: Final = frame(HEADERS, END_HEADERS | END_STREAM, 0, TRAILERS_OK)[:5]


class GrpcStream:
    """State of one stream. ``call`` is ``None`` once it is answered, or no answer is wanted.

    ``streams`` are those of its connection, by number; it leaves them when it has ended.
    """

    __slots__ = (
        "_held",
        "_left",
        "_limits",
        "_prefix",
        "_progress",
        "_sink",
        "_stalled_ms",
        "_started",
        "_streams",
        "_writer",
        "call",
        "half_closed",
        "head",
        "id",
        "kept_bytes",
        "queue",
        "queued_bytes",
        "received",
        "sent_bytes",
        "tail",
        "total",
        "unpacking",
        "window",
    )

    def __init__(
        self,
        number: int,
        head: CallHead,
        window: int,
        writer: FrameWriter,
        streams: dict[int, GrpcStream],
        limits: GrpcLimits,
    ) -> None:
        self._writer = writer
        self._streams = streams
        self._limits = limits
        self.id = number
        self.head = head
        self.window = window
        self.call: RpcCall | None = None
        self.half_closed = False
        self.received = 0  #: bytes since our last window update
        self.total = 0  #: bytes in all
        self.queue: deque[Buffer | OnSent] = deque()
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.kept_bytes = 0  #: copies among what is queued, at most
        self.tail: bytes | None = None
        self.unpacking: set[asyncio.Task[None]] = set()  #: keeps those tasks alive
        self._held = 0
        self._started = False
        self._prefix = b""
        self._sink: MessageSink | None = None
        self._left = 0
        self._progress = (0, 0)
        self._stalled_ms = 0.0

    # ------------------------------------------------------------------------------- inbound

    @property
    def mid_message(self) -> bool:
        return self._sink is not None or bool(self._prefix)

    def landing(self, limit: int) -> memoryview | None:
        """Where up to ``limit`` next bytes of this stream may be received straight into place."""
        if self._sink is None:
            return None
        view = self._sink.landing()
        return None if view is None else view[: min(limit, self._left)]

    def landed(self, nbytes: int) -> None:
        if self._sink is None:
            raise AssertionError("bytes landed outside of a message")
        self._sink.landed(nbytes)
        self._advance(nbytes)

    def feed(self, chunk: memoryview) -> None:
        """Take a piece of DATA: any part of any number of messages."""
        while chunk and self.call is not None:
            if self._sink is not None:
                part = chunk[: self._left]
                self._sink.feed(part)
                self._advance(len(part))
                chunk = chunk[len(part) :]
            elif self._prefix or len(chunk) < 5:
                need = 5 - len(self._prefix)
                self._prefix += bytes(chunk[:need])
                chunk = chunk[need:]
                if len(self._prefix) == 5:
                    prefix, self._prefix = self._prefix, b""
                    self._begin(*PREFIX.unpack(prefix))
            else:
                flag, size = PREFIX.unpack_from(chunk)
                limit = self._limits.max_message_bytes
                if flag == 0 and size <= len(chunk) - 5 and size <= limit:
                    self.call.whole(chunk[5 : 5 + size])
                    chunk = chunk[5 + size :]
                else:
                    self._begin(flag, size)
                    chunk = chunk[5:]

    def end_input(self) -> None:
        """END_STREAM came."""
        self.half_closed = True
        if self.call is None:
            return
        if self.mid_message:
            self._break(GrpcStatus.INVALID_ARGUMENT, "the stream ended inside a message")
        elif not self._held:
            self.call.end()

    def hold(self) -> None:
        """A message is whole and not taken yet: the end of input comes after it."""
        self._held += 1

    def go_on(self) -> None:
        """A message that was waited for has been taken, or refused."""
        self._held -= 1
        if self.half_closed and not self._held and self.call is not None:
            self.call.end()

    def charge(self, nbytes: int) -> bool:
        """Count received bytes against our window; False if the client overran it."""
        self.received += nbytes
        self.total += nbytes
        if self.received > STREAM_WINDOW:
            return False
        if self.received > STREAM_WINDOW // 2 and not self.half_closed:
            self._writer.put(window_update(self.id, self.received))
            self.received = 0
        return True

    def look_for_stall(self, since_ms: float) -> None:
        """Fail if the client owes us bytes, or room for ours, and nothing has moved for long."""
        call = self.call
        owes = call is not None and not self.half_closed and not call.streaming
        limits = self._limits
        least = limits.min_bytes_per_s * since_ms / 1000.0
        total, sent_bytes = self._progress
        self._progress = (self.total, self.sent_bytes)
        if self.queued_bytes:
            stuck = self.sent_bytes - sent_bytes < min(least, self.queued_bytes)
        else:
            stuck = (owes or self.mid_message) and self.total - total < least
        self._stalled_ms = self._stalled_ms + since_ms if stuck else 0.0
        if self._stalled_ms < limits.stall_timeout_ms:
            return
        if self.queued_bytes:
            self._streams.pop(self.id, None)
            self.reset()
            self._writer.put(rst_stream(self.id, CANCEL))
        else:
            text = f"the message has not come on for {limits.stall_timeout_ms:.0f} ms"
            self._break(GrpcStatus.DEADLINE_EXCEEDED, text)

    def _begin(self, flag: int, size: int) -> None:
        if self.call is None:
            return
        if flag > 1:
            self._break(GrpcStatus.INTERNAL, f"compressed flag is {flag}, must be 0 or 1")
            return
        limit = self._limits.max_message_bytes
        if size > limit:
            text = f"Received message larger than max ({size} vs. {limit})"
            self._break(GrpcStatus.RESOURCE_EXHAUSTED, text)
            return
        self._sink = self.call.sink(size, flag == 1)
        self._left = size
        if size == 0:
            self._advance(0)

    def _break(self, status: GrpcStatus, text: str) -> None:
        """The client broke off or broke the rules of gRPC: end the call and what it started."""
        call = self.call
        self.fail(status, text)
        if call is not None:
            call.gone()

    def _advance(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left == 0 and self._sink is not None:
            sink, self._sink = self._sink, None
            sink.finish()

    # ------------------------------------------------------------------------------ outbound

    def answer(self, parts: Sequence[Buffer], nbytes: int, sent: OnSent | None = None) -> None:
        """The one message of a unary call, then status OK."""
        writer = self._writer
        total = nbytes + 5
        if total > _JOINED_BYTES or writer.congested or min(self.window, writer.window) < total:
            self.message(parts, nbytes, sent)
            self.finish(TRAILERS_OK)
            return
        number = self.id.to_bytes(4, "big")
        writer.put(
            b"".join(
                (
                    _HEAD_FRAME,
                    number,
                    ANSWER_HEAD,
                    HEAD.pack(total >> 8, total & 0xFF, DATA, 0, self.id),
                    PREFIX.pack(0, nbytes),
                    *parts,
                    _TAIL_FRAME,
                    number,
                    TRAILERS_OK,
                )
            )
        )
        writer.window -= total
        self.ended()
        if sent is not None:
            sent()

    def message(
        self,
        parts: Sequence[Buffer],
        nbytes: int,
        sent: OnSent | None = None,
        paced: bool = False,
    ) -> None:
        """One message. ``sent`` is called once the bytes of ``parts`` may change.

        If it is ``paced``, it is called once the client took the message.
        """
        if not self._started:
            self._started = True
            self._writer.put(frame(HEADERS, END_HEADERS, self.id, ANSWER_HEAD))
        self.queued_bytes += nbytes + 5
        if nbytes <= _JOINED_BYTES:
            self.queue.append(b"".join((PREFIX.pack(0, nbytes), *parts)))
            if sent is not None and paced:
                self.queue.append(sent)
            elif sent is not None:
                sent()
        else:
            self.queue.append(PREFIX.pack(0, nbytes))
            self.queue.extend(part for part in parts if len(part))
            if sent is not None:
                self.queue.append(sent)
        self._writer.offer(self)
        if not self.queue:
            self.kept_bytes = 0
        elif nbytes <= _JOINED_BYTES:
            self.kept_bytes += nbytes

    def fail(self, status: GrpcStatus, text: str, retry_after_ms: float | None = None) -> None:
        """End the call with a status that is not OK (or with OK and no message)."""
        if status is not GrpcStatus.OK:
            self._writer.refused += 1
        self.finish(trailers(status, text, retry_after_ms))

    def refuse(self, error: ServeError) -> None:
        """End the call with a reason."""
        self.fail(GRPC_STATUS[error.reason], error.detail, error.retry_after_ms)

    def finish(self, block: bytes) -> None:
        """End the call with these trailers, after what is queued."""
        self._drop_call()
        self.tail = block if self._started else ANSWER_HEAD + block
        self._started = True
        self._writer.offer(self)

    def reject(self, block: bytes) -> None:
        """Answer what is no gRPC call with this block alone: head and trailers in one."""
        self._drop_call()
        self.tail = block
        self._writer.offer(self)

    def ended(self) -> None:
        """The stream's last frame is on its way."""
        self._drop_call()
        if not self.half_closed:  # nothing more that the client sends will be read
            self._writer.put(rst_stream(self.id, 0))
        self._streams.pop(self.id, None)

    def reset(self) -> None:
        """The client reset the stream, or its connection is closing."""
        call = self.call
        self._drop_call()
        self._writer.drop(self)
        if call is not None:
            call.gone()

    def _drop_call(self) -> None:
        self.call = None
        self._prefix = b""
        if self._sink is not None:
            sink, self._sink = self._sink, None
            sink.abandon()
