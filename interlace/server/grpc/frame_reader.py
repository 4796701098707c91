"""Bytes of one HTTP/2 connection cut into frames; message bytes go on as they come."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from interlace.server.grpc.http2_frames import (
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_LIMIT,
    FRAME_SIZE_ERROR,
    HEAD,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    PeerError,
)
from interlace.server.grpc.stream import GrpcStream

#: Smaller payloads are received together with other frames and copied; larger ones, straight into
#: place.
_LANDING_BYTES: Final = 32 << 10
#: A connection's turn ends after so many frames, or after the frame in which this time has passed.
#: A read can hold 20,000 frames, and every other connection waits meanwhile (Envoy bounds the same
#: with ``max_requests_per_io_cycle`` since CVE-2023-44487).
_FRAMES_A_TURN: Final = 64
_TURN_S: Final = 100e-6


#: The stream that a DATA frame of some length belongs to, which may be its last; ``None`` if it is
#: to be ignored.
DataStream = Callable[[int, int, bool], GrpcStream | None]
#: Acts on any other frame: kind, flags, stream, payload.
Control = Callable[[int, int, int, bytes], None]


class FrameReader:
    """The receiving end. ``scratch`` is where reads land, one for all connections of a process:
    what a turn leaves is kept in ``_rest``, and nothing more is read while there are whole frames
    in it (``unfinished``). So no more than one scratch is kept for a connection.

    ``max_control_bytes`` bounds every frame but DATA.
    """

    def __init__(
        self,
        sock: socket.socket,
        data_stream: DataStream,
        control: Control,
        scratch: memoryview,
        max_control_bytes: int,
    ) -> None:
        self.received_bytes = 0
        self.greeted = False
        self._sock = sock
        self._find = data_stream
        self._control = control
        self._scratch = scratch
        self._max_control_bytes = max_control_bytes
        self.unfinished = False  #: the turn ended before the frames that were read
        self._rest: bytes | memoryview = b""
        self._inside = False  #: between the first and the last byte of a DATA payload
        self._data_left = 0
        self._pad_left = 0
        self._data_stream: GrpcStream | None = None
        self._data_ends = False

    def receive(self) -> bool:
        """One turn: read once, or go on with what was read; False when the peer has closed.

        Raises:
            OSError: the connection broke.
            PeerError: the peer broke the protocol.
        """
        if self.unfinished:
            rest = memoryview(self._rest)
            used = self._consume(rest)  # mypyc evaluates what is inside a slice twice
            self._rest = rest[used:]
            return True
        landing = self._landing()
        kept = len(self._rest)
        if landing is not None:
            got = self._sock.recvmsg_into([landing, self._scratch])[0]
            size = self._landed(min(got, len(landing)), got)
        elif kept:
            self._scratch[:kept] = self._rest
            got = self._sock.recv_into(self._scratch[kept:])
            size = kept + got
        else:
            size = got = self._sock.recv_into(self._scratch)
        if not got:
            return False
        self.received_bytes += got
        used = self._consume(self._scratch[:size])
        self._rest = bytes(self._scratch[used:size]) if used < size else b""
        return True

    def _landing(self) -> memoryview | None:
        if self._data_left < _LANDING_BYTES or self._data_stream is None or self._rest:
            return None
        return self._data_stream.landing(self._data_left)

    def _landed(self, nbytes: int, got: int) -> int:
        if nbytes and self._data_stream is not None:
            self._data_stream.landed(nbytes)
            self._data_left -= nbytes
            if not self._data_left and not self._pad_left:
                self._end_data()
        return got - nbytes

    def _consume(self, view: memoryview) -> int:
        """Act on frames for one turn; how many bytes are done with."""
        at, size, frames = 0, len(view), 0
        self.unfinished = False
        if not self.greeted:
            at = self._greet(bytes(view[: len(PREFACE)]))
            if not at:
                return 0
        ends_s = time.perf_counter() + _TURN_S
        while True:
            if self._inside:
                at += self._continue_data(view[at:])
                if self._inside:
                    return at
            if size - at < 9:
                return at
            if frames == _FRAMES_A_TURN or (frames and time.perf_counter() > ends_s):
                self.unfinished = True
                return at
            frames += 1
            high, low, kind, flags, number = HEAD.unpack_from(view, at)
            length = high << 8 | low
            number &= MAX_WINDOW
            if kind == DATA:
                if length + 9 <= size - at and not flags & PADDED:
                    at += 9 + length
                    self._whole_data(view[at - length : at], flags, number)
                elif flags & PADDED and size - at < 10:
                    return at
                else:
                    at += self._begin_data(view[at : at + 10], length, flags, number)
                continue
            if length > self._max_control_bytes:
                raise PeerError(ENHANCE_YOUR_CALM, f"frame of type {kind} with {length} bytes")
            if size - at - 9 < length:
                return at
            at += 9 + length
            self._control(kind, flags, number, bytes(view[at - length : at]))

    def _greet(self, start: bytes) -> int:
        if not PREFACE.startswith(start):
            raise PeerError(PROTOCOL_ERROR, "not HTTP/2: no connection preface")
        self.greeted = len(start) == len(PREFACE)
        return len(start) if self.greeted else 0

    def _whole_data(self, payload: memoryview, flags: int, number: int) -> None:
        ends = bool(flags & END_STREAM)
        stream = self._find(number, len(payload), ends)
        if stream is None:
            return
        if payload:
            stream.feed(payload)
        if ends:
            stream.end_input()

    def _begin_data(self, head: memoryview, length: int, flags: int, number: int) -> int:
        """Enter a DATA payload; how many bytes of ``head`` that took."""
        if length > FRAME_LIMIT:
            raise PeerError(FRAME_SIZE_ERROR, f"DATA of {length} bytes, limit {FRAME_LIMIT}")
        pad, used = 0, 9
        self._data_left = length
        if flags & PADDED:
            pad, used = head[9], 10
            self._data_left = length - 1 - pad
            if self._data_left < 0:
                raise PeerError(PROTOCOL_ERROR, f"{pad} bytes of padding in a frame of {length}")
        self._pad_left = pad
        self._data_ends = bool(flags & END_STREAM)
        self._data_stream = self._find(number, length, self._data_ends)
        self._inside = True
        return used

    def _continue_data(self, view: memoryview) -> int:
        used = min(self._data_left, len(view))
        if used:
            self._data_left -= used
            if self._data_stream is not None:
                self._data_stream.feed(view[:used])
        if not self._data_left:
            padding = min(self._pad_left, len(view) - used)
            self._pad_left -= padding
            used += padding
            if not self._pad_left:
                self._end_data()
        return used

    def _end_data(self) -> None:
        stream, self._data_stream = self._data_stream, None
        self._inside = False
        if stream is not None and self._data_ends:
            stream.end_input()
