"""Unary gRPC calls over HTTP/2: flow control, PING and SETTINGS honoured."""

from __future__ import annotations

import struct

from interlace.load.call import EncodedCall
from interlace.load.http1 import BROKEN, ClientConnection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
WINDOW, FRAME = 65_535, 16_384
CHUNK = 1 << 20
#: What this side grants the server at once; renewed long before it is used up.
OWN_WINDOW = 0x7FFFFFFF
#: Statuses of a call without a message: refused or failed, and a stream that was reset.
FAILED, RESET = 500, 503


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream)


class Http2(ClientConnection):
    """One stream at a time; a reply with a message counts as 200."""

    __slots__ = ("got", "input", "max_frame", "pending", "received", "stream", "window",
                 "window_first", "window_stream")  # fmt: skip

    def greet(self) -> None:
        self.stream, self.window, self.window_first = -1, WINDOW, WINDOW
        self.window_stream, self.max_frame = 0, FRAME
        self.input, self.got, self.received = b"", 0, 0
        self.pending: memoryview | None = None
        settings = struct.pack(">HIHI", 4, OWN_WINDOW, 5, 1 << 22)
        grant = struct.pack(">I", OWN_WINDOW - WINDOW)
        self.sock.sendall(
            PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, grant)
        )

    def start(self, call: EncodedCall) -> None:
        self.stream += 2
        self.busy, self.got = True, 0
        self.window_stream = self.window_first
        self.pending = memoryview(call.payload)
        self.write(frame(HEADERS, 4, self.stream, call.head) + self._data())

    def _data(self) -> bytes:
        """As many DATA frames as both windows allow."""
        out: list[bytes | memoryview] = []
        left = self.pending
        while left is not None:
            size = min(len(left), self.max_frame, self.window, self.window_stream)
            if size <= 0:
                break
            last = size == len(left)
            out += [frame_head(DATA, int(last), self.stream, size), left[:size]]
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
            size = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at - 9 < size:
                break
            ended = self._frame(buffer, at, size)
            status = status if ended is None else ended
            at += 9 + size
        self.input = buffer[at:]
        return self._settle(status)

    def _frame(self, buffer: bytes, at: int, size: int) -> int | None:
        """Handle one frame; the status if it ends the call."""
        kind, flags = buffer[at + 3], buffer[at + 4]
        stream = struct.unpack_from(">I", buffer, at + 5)[0] & OWN_WINDOW
        body = at + 9
        if kind == DATA:
            self.got += size
            self.received += size
        elif kind == HEADERS and flags & 1 and stream == self.stream:
            return 200 if self.got else FAILED
        elif kind == SETTINGS and not flags & 1:
            self._settings(buffer[body : body + size])
        elif kind == PING and not flags & 1:
            self.write(frame(PING, 1, 0, buffer[body : body + 8]))
        elif kind == WINDOW_UPDATE:
            self._window(stream, struct.unpack_from(">I", buffer, body)[0] & OWN_WINDOW)
        elif kind == RST_STREAM and stream == self.stream:
            return RESET
        elif kind == GOAWAY:
            return BROKEN
        return None

    def _settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == 4:
                self.window_stream += value - self.window_first
                self.window_first = value
            elif key == 5:
                self.max_frame = min(value, CHUNK)
        self.write(frame(SETTINGS, 1, 0))

    def _window(self, stream: int, size: int) -> None:
        if stream == 0:
            self.window += size
        elif stream == self.stream:
            self.window_stream += size

    def _settle(self, status: int | None) -> int | None:
        if self.received > 1 << 29:
            self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self.received)))
            self.received = 0
        if status is not None:
            self.busy = False
        elif self.pending is not None:
            more = self._data()
            if more:
                self.write(more)
        return status
