"""The loop without a process: who is let in, and who must go."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.epoll_loop import EpollLoop
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.process import listen
from tests.server.grpc.wirebench import HELLO


class NoService:
    """Never asked."""

    def open(self, stream: object) -> None:
        raise AssertionError(stream)


class Turns:
    """A loop that a test turns by hand."""

    def __init__(self, limits: GrpcLimits) -> None:
        service: Any = NoService()
        self.loop = EpollLoop(service, limits)
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.loop.listen(listener)
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.clients.append(client)
        self.turn()
        return client

    def turn(self, ticks: int = 0) -> None:
        """Act on what has come, then tick."""
        for _ in range(2):
            self.loop.read(0.2)
            self.loop.write()
        for _ in range(ticks):
            self.loop._look_for_stalls()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.loop.stop()
        self.loop.run(lambda: None, lambda: False, lambda: None)


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns(GrpcLimits(max_connections=2, stall_timeout_ms=3000.0))
    yield made
    made.close()


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
    turns: Turns, capsys: pytest.CaptureFixture[str]
) -> None:
    other, faulty = greet(turns), greet(turns)
    guest = max(turns.loop._clients.values(), key=lambda each: each.connection.sock.fileno())
    guest.connection._takers[h2.PING] = lambda *_: 1 / 0  # type: ignore[assignment]
    faulty.sendall(h2.frame(h2.PING, 0, 0, bytes(8)))
    turns.turn()
    assert ended(faulty) and not ended(other)
    assert "ZeroDivisionError" in capsys.readouterr().err
