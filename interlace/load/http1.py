"""HTTP/1.1 calls on a kept-alive connection."""

from __future__ import annotations

from interlace.load.call import EncodedCall
from interlace.load.connection import BROKEN, ClientConnection

CHUNK = 1 << 20


class Http1(ClientConnection):
    """Reads a reply by its Content-Length or to its last chunk, and throws the body away."""

    __slots__ = ("chunked", "closing", "head", "left", "status", "tail")

    def greet(self) -> None:
        self.head, self.left, self.chunked, self.tail = b"", -1, False, b""
        self.status, self.closing = 0, False

    def start(self, call: EncodedCall) -> None:
        self.greet()
        self.busy = True
        self.write(call.payload)

    def readable(self) -> int | None:
        while True:
            try:
                data = self.sock.recv(CHUNK)
            except BlockingIOError:
                return None
            except OSError:
                return BROKEN
            if not data:
                return BROKEN
            if self._take(data):
                return self._finish()

    def _take(self, data: bytes) -> bool:
        """Whether the reply is complete."""
        if self.left >= 0:
            self.left -= len(data)
            return self.left <= 0
        if self.chunked:
            self.tail = (self.tail + data)[-8:]
            return self.tail.endswith(b"0\r\n\r\n")
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        return end >= 0 and self._begin(self.head[:end].lower(), self.head[end + 4 :])

    def _begin(self, head: bytes, body: bytes) -> bool:
        self.head = b""
        self.status = int(head[9:12])
        self.closing = b"connection: close" in head
        at = head.find(b"\ncontent-length:")
        if at >= 0:
            end = head.find(b"\r\n", at + 1)
            self.left = max(0, int(head[at + 16 : end if end >= 0 else None]) - len(body))
            return self.left == 0
        if b"transfer-encoding: chunked" in head:
            self.chunked, self.tail = True, body[-8:]
            return self.tail.endswith(b"0\r\n\r\n")
        return True

    def _finish(self) -> int:
        self.busy = False
        status = self.status
        if self.closing:
            self.close()
        return status
