"""One connection of the load generator: at most one request under way."""

from __future__ import annotations

import json
import socket
from typing import Protocol

import httptools

from interlace.load.v2_client import V2Client

_ERROR_BYTES_MAX = 4096
_READ_BYTES = 1 << 18
_CONNECT_TIMEOUT_S = 5.0


class Poller(Protocol):
    """What a lane needs of an epoll."""

    def want(self, lane: Lane, write: bool) -> None: ...


class Answer:
    """How a call ended: the status, and for anything but 200 the server's reason."""

    __slots__ = ("reason", "status")

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class Lane:
    """A keep-alive HTTP/1.1 connection, driven by readiness."""

    def __init__(self, server: V2Client, poller: Poller) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there.
        """
        self.socket = socket.create_connection((server.host, server.port), _CONNECT_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.ticket = -1  #: the request under way, for the owner
        self._poller = poller
        self._unsent = memoryview(b"")
        self._answer: Answer | None = None
        self._body = bytearray()
        self._parser = httptools.HttpResponseParser(self)

    def send(self, wire: bytes) -> None:
        """Start a request; the rest of it follows when the socket takes more."""
        self._answer = None
        self._body.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._unsent = memoryview(wire)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        waited = len(self._unsent) > 0
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            self._poller.want(self, write=True)
            return
        if waited:
            self._poller.want(self, write=False)

    def receive(self) -> Answer | None:
        """Read what came; the answer once it is complete.

        Raises:
            ConnectionError: the server closed, or does not speak HTTP.
        """
        try:
            while self._answer is None:
                data = self.socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("closed by the server")
                self._parser.feed_data(data)
        except BlockingIOError:
            return None
        except httptools.HttpParserError as error:
            raise ConnectionAbortedError(f"not HTTP: {error}") from None
        return self._answer

    def close(self) -> None:
        self.socket.close()

    # Called by the parser.

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200 and len(self._body) < _ERROR_BYTES_MAX:
            self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._answer = Answer(status, "" if status == 200 else reason_of(status, self._body))


def reason_of(status: int, body: bytes | bytearray) -> str:
    """The reason in an error body, else the status as text."""
    try:
        return str(json.loads(bytes(body))["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
