"""The loop without a process: who is let in, and who must go."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import pytest

from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.epoll_loop import EpollLoop
from interlace.server.limits import GrpcLimits
from interlace.server.listening import listening_sockets
from tests.server.grpc.wirebench import HELLO

T = TypeVar("T")


class NoService:
    """Never asked."""

    def open(self, stream: object) -> None:
        raise AssertionError(stream)


class Turns:
    """A server's connections on an event loop that a test turns by hand."""

    def __init__(self, limits: GrpcLimits) -> None:
        self._asyncio = asyncio.new_event_loop()
        service: Any = NoService()
        (listener,) = listening_sockets("gRPC", "127.0.0.1", 0, 1024)
        self.port = listener.getsockname()[1]
        self.loop = self.run(lambda: EpollLoop(service, limits))
        self.run(lambda: self.loop.listen(listener))
        assert self.loop._timer is not None
        self.loop._timer.cancel()
        self._asyncio.remove_reader(self.loop._epoll.fileno())
        self.clients: list[socket.socket] = []

    def run(self, work: Callable[[], T]) -> T:
        """Do something on the loop."""

        async def call() -> T:
            return work()

        return self._asyncio.run_until_complete(call())

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.clients.append(client)
        self.turn()
        return client

    def turn(self, ticks: int = 0) -> None:
        """Act on what has come, then tick."""
        for _ in range(20):
            self.one_turn()
        for _ in range(ticks):
            self.run(self.loop._look_for_stalls)

    def one_turn(self) -> None:
        """One turn, and no other."""
        self.run(self._once)

    def _once(self) -> None:
        self.loop._called = True
        self.loop._read()
        self.loop._write()
        self.loop._called = True  # nothing by itself

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for client in self.clients:
            client.close()
        self.run(self.loop.close)
        self._asyncio.close()


@pytest.fixture
def turns() -> Iterator[Turns]:
    with Turns(GrpcLimits(max_connections=2, stall_timeout_ms=3000.0)) as made:
        yield made


def ended(client: socket.socket) -> bool:
    client.settimeout(2)
    try:
        while client.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def greet(turns: Turns) -> socket.socket:
    client = turns.connect()
    client.sendall(HELLO)
    turns.turn()
    return client


def test_the_idlest_makes_way_for_the_next(turns: Turns) -> None:
    first = greet(turns)
    turns.turn(ticks=8)
    second = greet(turns)
    third = turns.connect()
    assert turns.loop.connections == 2 and ended(third)  # nobody has been idle for long
    turns.turn(ticks=6)
    greet(turns)
    assert turns.loop.connections == 2 and ended(first) and not ended(second)


def test_who_says_nothing_is_cut_off(turns: Turns) -> None:
    silent = turns.connect()
    turns.turn(ticks=5)
    assert turns.loop.connections == 0 and ended(silent)


def test_a_mistake_of_ours_costs_one_connection(
    turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    other, faulty = greet(turns), greet(turns)
    served = max(turns.loop._clients.values(), key=lambda each: each.connection.sock.fileno())
    served.connection._takers[h2.PING] = lambda *_: 1 / 0  # type: ignore[assignment]
    faulty.sendall(h2.frame(h2.PING, 0, 0, bytes(8)))
    turns.turn()
    assert ended(faulty) and not ended(other)
    assert "ZeroDivisionError" in caplog.text
