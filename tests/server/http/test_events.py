"""Streams of events: one at a time, as fast as they are taken, and ended with their server."""

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from interlace.server.http import admin_handler
from interlace.server.http.routes import EventSource, HttpResponse, Route
from interlace.server.http.server import HttpServer
from tests.server.fakes import wait_until
from tests.server.stand import LoopThread
from tests.server.wire import Reader, exchange, request

ASK = request("GET", "/events")


class Streaming(LoopThread):
    """A server of events without an end: 0, 1, 2 ..."""

    def __init__(self, size: int = 1, every_s: float = 0.0) -> None:
        super().__init__()
        self.made = 0
        source = EventSource(lambda: self.next().rjust(size), every_s)
        route = Route("/events", respond={"GET": lambda asked: HttpResponse(events=source)})
        self.http: HttpServer = self.do(lambda: HttpServer([route]))
        self.parts, self.memory = self, ExitStack()
        self.port = self.wait(self.http.listen("127.0.0.1", 0))

    def next(self) -> bytes:
        self.made += 1
        return b"%d" % (self.made - 1)


@pytest.fixture
def server() -> Iterator[Streaming]:
    with Streaming() as server:
        yield server


def test_events_follow_each_other_until_the_server_ends(server: Streaming) -> None:
    with server.connect() as connection:
        assert exchange(connection, request("HEAD", "/events"), bodyless=True).status == 200
        connection.sendall(ASK)
        wait_until(lambda: server.made > 100)
        server.wait(server.http.close(10.0))
        told = Reader(connection).response()
        assert told.headers["content-type"].startswith("text/event-stream")
        events = told.body.decode().removesuffix("\n\n").split("\n\n")
        assert events == [f"data: {number}" for number in range(server.made)]
        assert connection.recv(1) == b""


def test_a_client_that_does_not_read_is_not_written_for() -> None:
    with Streaming(size=1 << 20) as server, server.connect() as connection:
        connection.sendall(ASK)
        made = []
        for _ in range(2):
            with server.connect() as other:  # meanwhile the system's buffers fill up
                for _ in range(20):
                    assert exchange(other, request("GET", "/none")).status == 404
            made.append(server.made)
        assert 1 < made[0] == made[1] < 20
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_streams_are_bounded_and_end_with_their_client(
    server: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_handler, "_STREAMS", 1)
    with server.connect() as first, server.connect() as second:
        first.sendall(ASK)
        assert first.recv(12) == b"HTTP/1.1 200"
        refused = exchange(second, ASK)
        assert (refused.status, refused.error) == (429, "1 streams of events are open: close one")
    with server.connect() as third:
        wait_until(lambda: not server.do(lambda: server.http.connections > 1))
        third.sendall(ASK)
        assert third.recv(12) == b"HTTP/1.1 200"


def test_a_source_that_breaks_ends_its_stream() -> None:
    numbers = itertools.count()
    with Streaming() as server:
        server.next = lambda: b"%d" % (1 // (2 - next(numbers)))  # type: ignore[method-assign]
        server.loop.set_exception_handler(lambda loop, context: None)
        with server.connect() as connection:
            connection.sendall(ASK)
            assert Reader(connection).response().body == b"data: 0\n\ndata: 1\n\n"
