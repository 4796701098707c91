"""Unary gRPC calls over HTTP/2: flow control, PING and SETTINGS honoured."""

from __future__ import annotations

import struct

from interlace.load.call import EncodedCall
from interlace.load.http1 import BROKEN, ClientConnection
from interlace.server.grpc import http2_frames as h2

CHUNK = 1 << 20
#: Statuses of a call without a message: refused or failed, and a stream that was reset.
FAILED, RESET = 500, 503


class Http2(ClientConnection):
    """One stream at a time; a reply with a message counts as 200."""

    __slots__ = ("got", "input", "max_frame", "pending", "received", "stream", "window",
                 "window_first", "window_stream")  # fmt: skip

    def greet(self) -> None:
        self.stream, self.window = -1, h2.DEFAULT_WINDOW
        self.window_first, self.window_stream = h2.DEFAULT_WINDOW, 0
        self.max_frame = h2.DEFAULT_FRAME
        self.input, self.got, self.received = b"", 0, 0
        self.pending: memoryview | None = None
        # The server may send as much as it likes; the grant is renewed long before it is used up.
        pairs = h2.INITIAL_WINDOW_SIZE, h2.MAX_WINDOW, h2.MAX_FRAME_SIZE, 1 << 22
        settings = h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HIHI", *pairs))
        grant = h2.window_update(0, h2.MAX_WINDOW - h2.DEFAULT_WINDOW)
        self.sock.sendall(h2.PREFACE + settings + grant)

    def start(self, call: EncodedCall) -> None:
        self.stream += 2
        self.busy, self.got = True, 0
        self.window_stream = self.window_first
        self.pending = memoryview(call.payload)
        opening = h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream, call.head)
        self.write(opening + self._data())

    def _data(self) -> bytes:
        """As many DATA frames as both windows allow."""
        out: list[bytes | memoryview] = []
        left = self.pending
        while left is not None:
            size = min(len(left), self.max_frame, self.window, self.window_stream)
            if size <= 0:
                break
            last = size == len(left)
            flags = h2.END_STREAM if last else 0
            head = h2.HEAD.pack(size >> 8, size & 0xFF, h2.DATA, flags, self.stream)
            out += [head, left[:size]]
            self.window -= size
            self.window_stream -= size
            left = None if last else left[size:]
        self.pending = left
        return b"".join(out)

    def readable(self) -> int | None:
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return BROKEN
        if not data:
            return BROKEN
        buffer, at = self.input + data, 0
        status: int | None = None
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream = h2.HEAD.unpack_from(buffer, at)
            end = at + 9 + (high << 8 | low)
            if len(buffer) < end:
                break
            if kind == h2.DATA:
                self.got += end - at - 9
                self.received += end - at - 9
            else:
                ended = self._frame(kind, flags, stream & h2.MAX_WINDOW, buffer[at + 9 : end])
                status = status if ended is None else ended
            at = end
        self.input = buffer[at:]
        return self._settle(status)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> int | None:
        """Handle a frame without data; the status if it ends the call."""
        if kind == h2.HEADERS and flags & h2.END_STREAM and stream == self.stream:
            return 200 if self.got else FAILED
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self._settings(payload)
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.WINDOW_UPDATE:
            self._window(stream, h2.word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW)
        elif kind == h2.RST_STREAM and stream == self.stream:
            return RESET
        elif kind == h2.GOAWAY:
            return BROKEN
        return None

    def _settings(self, payload: bytes) -> None:
        for key, value in h2.read_settings(payload):
            if key == h2.INITIAL_WINDOW_SIZE:
                self.window_stream += value - self.window_first
                self.window_first = value
            elif key == h2.MAX_FRAME_SIZE:
                self.max_frame = min(value, CHUNK)
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _window(self, stream: int, size: int) -> None:
        if stream == 0:
            self.window += size
        elif stream == self.stream:
            self.window_stream += size

    def _settle(self, status: int | None) -> int | None:
        if self.received > 1 << 29:
            self.write(h2.window_update(0, self.received))
            self.received = 0
        if status is not None:
            self.busy = False
        elif self.pending is not None:
            more = self._data()
            if more:
                self.write(more)
        return status
