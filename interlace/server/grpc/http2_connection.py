"""One HTTP/2 connection: what each frame does to its streams and windows (RFC 9113)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.frame_reader import FrameReader
from interlace.server.grpc.frame_writer import FrameWriter
from interlace.server.grpc.headers import CallHead, HeaderBlockReader, plain_refusal
from interlace.server.grpc.http2_frames import (
    ENHANCE_YOUR_CALM,
    MAX_WINDOW,
    PROTOCOL_ERROR,
    PeerError,
)
from interlace.server.grpc.service import GrpcService
from interlace.server.grpc.stream import GrpcStream
from interlace.server.limits import GrpcLimits, TokenBucket

#: Window updates that a client may send for each call, and for each DATA frame that it gets (as in
#: nghttp2 and Envoy). One is for the stream, one for the connection; eager clients send more.
_UPDATES_EACH: Final = 10


class AbuseBudget:
    """What one connection may ask for at no cost to itself; well-behaved peers never use it up.

    ``burst_share`` of its bursts is there at first. What raises ``PeerError`` is ENHANCE_YOUR_CALM.
    """

    def __init__(self, limits: GrpcLimits, burst_share: float = 1.0) -> None:
        self._control = TokenBucket(10.0 * limits.control_per_s, limits.control_per_s, burst_share)
        self._resets = TokenBucket(2.0 * limits.resets_per_s, limits.resets_per_s, burst_share)
        self._updates_left = 0  # window updates that cost nothing
        self._data_frames = 0  # sent so far, as of the last update

    def charge(self, what: str = "frames that carry no call") -> None:
        """A frame that cost the peer nothing and us something.

        Raises:
            PeerError: too many of them.
        """
        if not self._control.take():
            raise PeerError(ENHANCE_YOUR_CALM, f"too many {what}")

    def charge_reset(self, what: str) -> None:
        """A stream that was opened for nothing.

        Raises:
            PeerError: too many of them.
        """
        if not self._resets.take():
            raise PeerError(ENHANCE_YOUR_CALM, f"too many streams {what}")

    def charge_update(self, data_frames: int) -> None:
        """A window update, after so many DATA frames were sent; those that these explain are free.

        Raises:
            PeerError: too many others.
        """
        self._updates_left += _UPDATES_EACH * (data_frames - self._data_frames) - 1
        self._data_frames = data_frames
        if self._updates_left < 0:
            self._updates_left = 0
            self.charge()

    def opened(self) -> None:
        """A call, for which windows may be updated before anything is sent."""
        self._updates_left += _UPDATES_EACH


#: The window of the whole connection is topped up when this much of its 2 GiB is used.
_CREDIT_BYTES: Final = 1 << 30
#: DATA frames smaller than this on a stream without a call are not the tail of an upload.
_IDLE_BYTES: Final = 256
#: What honest clients send in any number, besides DATA; resets and window updates have budgets of
#: their own.
_FREE: Final = frozenset((h2.HEADERS, h2.WINDOW_UPDATE, h2.RST_STREAM))


class Http2Connection:
    """Streams by number, and the halves that read and write their bytes.

    Some frames cost the server more than the peer: pings, settings, resets, heads in pieces,
    useless window updates and malformed calls. An ``AbuseBudget`` limits them to what honest
    clients need (the "rapid reset", ping, settings, CONTINUATION and empty-frame floods).
    """

    def __init__(
        self,
        sock: socket.socket,
        service: GrpcService,
        limits: GrpcLimits,
        scratch: memoryview,
        wake: Callable[[], None],
        burst_share: float = 1.0,
    ) -> None:
        self.sock = sock
        self.limits = limits
        self.writer = FrameWriter(sock, limits.max_backlog_bytes, wake)
        self.reader = FrameReader(
            sock, self.data_stream, self.control, scratch, limits.max_header_bytes + 512
        )
        self.streams: dict[int, GrpcStream] = {}
        self.draining = False  #: no new streams
        self._service = service
        self._blocks = HeaderBlockReader(limits.max_header_bytes)
        self._last_stream = 0
        self._uncredited = 0
        self._windows_grew = False
        self.configured = False  #: the client's first SETTINGS have come
        self.idle_ms = 0.0  #: without a call, when last looked
        self.kept_bytes = 0  #: copies that wait for the client to make room, when last looked
        self._seen_bytes = -1, -1  # received and sent, when last looked
        self._stalled_ms = 0.0
        self._budget = AbuseBudget(limits, burst_share)
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            h2.HEADERS: self._headers,
            h2.RST_STREAM: self._rst_stream,
            h2.SETTINGS: self._settings,
            h2.PUSH_PROMISE: self._push_promise,
            h2.PING: self._ping,
            h2.GOAWAY: self._goaway,
            h2.WINDOW_UPDATE: self._window_update,
            h2.CONTINUATION: self._continuation,
        }
        self.writer.put(h2.settings(limits.max_streams, limits.max_header_bytes))

    @property
    def done(self) -> bool:
        """Whether a connection that drains has nothing left to do."""
        return self.draining and not self.streams and self.writer.idle

    def receive(self) -> bool:
        """One turn: act on some frames; False when the peer has closed.

        Raises:
            OSError: the connection broke.
            PeerError: the peer broke the protocol.
        """
        alive = self.reader.receive()
        if self._windows_grew:
            self._windows_grew = False
            self.writer.opened()
        return alive

    def drain(self) -> None:
        """Tell the client to make its next calls elsewhere, and finish those that run."""
        if not self.draining:
            self.draining = True
            self.writer.put(h2.goaway(self._last_stream, h2.NO_ERROR))

    def end(self, fault: PeerError | None = None) -> None:
        """Everything that is still open is cancelled; a last word to a peer at fault."""
        for stream in list(self.streams.values()):
            stream.reset()
        self.streams.clear()
        if fault is not None:
            self.writer.put(h2.goaway(self._last_stream, fault.code, fault.text))
            with suppress(OSError):  # it has gone, as it should
                self.writer.flush()
        self.writer.close()

    def look(self, since_ms: float) -> bool:
        """Call this every ``since_ms``. Ends streams whose client owes us bytes, or takes none of
        ours, for longer than the limit; False if the connection itself is stuck."""
        self.kept_bytes = 0
        for stream in list(self.streams.values()):
            stream.look_for_stall(since_ms)
            self.kept_bytes += stream.kept_bytes if stream.queue else 0
        received_bytes, sent_bytes = self._seen_bytes
        self._seen_bytes = self.reader.received_bytes, self.writer.sent_bytes
        quiet = not self.streams and received_bytes == self.reader.received_bytes
        self.idle_ms = self.idle_ms + since_ms if quiet else 0.0
        waits = self.writer.backlog_bytes > 0 or not self.configured
        stands = waits and sent_bytes == self.writer.sent_bytes
        self._stalled_ms = self._stalled_ms + since_ms if stands else 0.0
        return self._stalled_ms < self.limits.stall_timeout_ms

    # ------------------------------------------------------------------------- from the reader

    def data_stream(self, number: int, length: int, ends: bool) -> GrpcStream | None:
        """The stream that a DATA frame of ``length`` belongs to; ``None`` if it is to be
        ignored."""
        if not self.configured or self._blocks.inside or number == 0:
            raise PeerError(PROTOCOL_ERROR, "DATA where none may be")
        if number > self._last_stream or not number & 1:
            raise PeerError(PROTOCOL_ERROR, f"DATA on idle stream {number}")
        self._uncredited += length
        if self._uncredited > _CREDIT_BYTES:
            self.writer.put(h2.window_update(0, self._uncredited))
            self._uncredited = 0
        stream = self.streams.get(number)
        if length < _IDLE_BYTES and not ends and (stream is None or not length):
            self._budget.charge()
        if stream is None:
            return None  # answered or reset: its last bytes may still be on their way
        if stream.half_closed:
            raise PeerError(h2.STREAM_CLOSED, f"DATA after the end of stream {number}")
        if not stream.charge(length):
            raise PeerError(h2.FLOW_CONTROL_ERROR, f"stream {number} overran its window")
        return stream

    def control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Any frame but DATA, whole."""
        if not self.configured:
            if kind != h2.SETTINGS or flags & h2.ACK:
                raise PeerError(PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self.configured = True
        if self._blocks.inside and kind != h2.CONTINUATION:
            raise PeerError(PROTOCOL_ERROR, "a frame inside a header block")
        if kind not in _FREE:
            self._budget.charge()
        taker = self._takers.get(kind)
        if taker is not None:
            taker(flags, number, payload)

    # ---------------------------------------------------------------------------------- heads

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        opening = self._blocks.headers(flags, number, payload)
        if opening is not None:
            self._head(*opening)

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        opening = self._blocks.continuation(flags, number, payload)
        if opening is not None:
            self._head(*opening)

    def _head(self, number: int, head: CallHead, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._client_trailers(stream, ends)
        elif not number & 1:
            raise PeerError(PROTOCOL_ERROR, f"HEADERS on stream {number}")
        elif number <= self._last_stream:
            self._budget.charge()  # trailers of a stream that we have already answered
        else:
            self._last_stream = number
            if self.draining or len(self.streams) >= self.limits.max_streams:
                self._reset_by_us(number, h2.REFUSED_STREAM)
            elif head.malformed:
                self._reset_by_us(number, PROTOCOL_ERROR)
            else:
                self._open(number, head, ends)

    def _open(self, number: int, head: CallHead, ends: bool) -> None:
        writer, limits = self.writer, self.limits
        stream = GrpcStream(number, head, writer.first_window, writer, self.streams, limits)
        self.streams[number] = stream
        self._budget.opened()
        if head.http_status != 200:
            stream.half_closed = ends
            stream.reject(plain_refusal(head.http_status, head.refusal))
            self._budget.charge("calls that cannot be")
            return
        stream.call = self._service.open(stream)
        if stream.call is None:
            self._budget.charge("calls that cannot be")
        if ends:
            stream.end_input()

    def _client_trailers(self, stream: GrpcStream, ends: bool) -> None:
        if not ends or stream.half_closed:
            raise PeerError(PROTOCOL_ERROR, f"a second head on stream {stream.id}")
        stream.end_input()

    def _reset_by_us(self, number: int, code: int) -> None:
        self._budget.charge_reset("that cannot be served")
        self.writer.put(h2.rst_stream(number, code))

    # -------------------------------------------------------------------------------- control

    def _rst_stream(self, _flags: int, number: int, payload: bytes) -> None:
        h2.word(payload, "RST_STREAM")
        self._not_idle(number, "RST_STREAM")
        stream = self.streams.pop(number, None)
        if stream is not None:
            self._budget.charge_reset("opened and reset")
            stream.half_closed = True
            stream.reset()

    def _window_update(self, _flags: int, number: int, payload: bytes) -> None:
        increment = h2.word(payload, "WINDOW_UPDATE") & MAX_WINDOW
        self._budget.charge_update(self.writer.data_frames)
        if number == 0:
            self.writer.window += increment
            if not increment or self.writer.window > MAX_WINDOW:
                raise PeerError(h2.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
        else:
            self._not_idle(number, "WINDOW_UPDATE")
            stream = self.streams.get(number)
            if stream is None:
                return
            stream.window += increment
            if not increment or stream.window > MAX_WINDOW:
                raise PeerError(h2.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
        self._windows_grew = True

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise PeerError(PROTOCOL_ERROR, f"SETTINGS on stream {number}")
        if flags & h2.ACK:
            if payload:
                raise PeerError(h2.FRAME_SIZE_ERROR, "SETTINGS acknowledged with a payload")
            return
        self.writer.follow(payload, self.streams.values())
        self._windows_grew = True

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number != 0:
            raise PeerError(PROTOCOL_ERROR, f"PING on stream {number}")
        if len(payload) != 8:
            raise PeerError(h2.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        if not flags & h2.ACK:
            self.writer.put(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _goaway(self, _flags: int, number: int, payload: bytes) -> None:
        if number != 0 or len(payload) < 8:
            raise PeerError(PROTOCOL_ERROR, "malformed GOAWAY")
        self.draining = True

    def _push_promise(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise PeerError(PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _not_idle(self, number: int, kind: str) -> None:
        if number == 0 or number > self._last_stream:
            raise PeerError(PROTOCOL_ERROR, f"{kind} on stream {number}, which is idle")
