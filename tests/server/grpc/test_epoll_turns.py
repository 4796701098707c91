"""Connections take turns, and what costs a peer nothing and us something comes to an end."""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from interlace.server.grpc import http2_frames as h2
from interlace.server.limits import GrpcLimits
from tests.server.grpc.test_epoll_loop import Turns, ended, greet
from tests.server.grpc.wirebench import (
    HELLO,
    INFER,
    STREAM,
    Wire,
    data,
    head,
    head_block,
    message,
    outputs,
    request,
)

FRAMES_A_TURN = 64
FEW = GrpcLimits(control_per_s=20.0)


def ping(number: int) -> bytes:
    return h2.frame(h2.PING, 0, 0, number.to_bytes(8, "big"))


def pings_of(client: socket.socket) -> list[int]:
    """The numbers of the pings that were answered, as far as they are there to read."""
    client.settimeout(0.2)
    got = b""
    with suppress(TimeoutError, ConnectionResetError):
        while chunk := client.recv(1 << 20):
            got += chunk
    return pings_in(got)


def pings_in(got: bytes) -> list[int]:
    at, found = 0, []
    while at < len(got):
        start, at = at + 9, at + 9 + int.from_bytes(got[at : at + 3], "big")
        if got[start - 6] == h2.PING:
            found.append(int.from_bytes(got[start:at], "big"))
    return found


# ------------------------------------------------------------------------------------------- turns


def test_a_turn_ends_and_the_next_goes_on_where_it_stopped() -> None:
    with Wire() as wire:
        wire.send(HELLO)
        wire.frames()
        wire.ours.send(b"".join(map(ping, range(1000))) + ping(1000)[:5])
        answered: list[int] = []
        while len(answered) < 1000:
            assert wire.connection.receive()
            wire.connection.writer.flush()
            came = [int.from_bytes(one.payload, "big") for one in wire.arrived()]
            assert 1 <= len(came) <= FRAMES_A_TURN
            answered += came
            assert wire.connection.reader.unfinished == (len(answered) < 1000)
        assert answered == list(range(1000))
        wire.send(ping(1000)[5:])  # the frame that had come in half
        assert [int.from_bytes(one.payload, "big") for one in wire.frames()] == [1000]


def test_nothing_more_is_read_before_what_was_read_is_done() -> None:
    with Wire() as wire:
        wire.send(HELLO)
        wire.frames()
        sent = wire.connection.reader.received_bytes
        wire.ours.send(b"".join(map(ping, range(500))))
        wire.connection.receive()
        first = wire.connection.reader.received_bytes - sent
        wire.ours.send(b"".join(map(ping, range(500, 600))))
        wire.connection.receive()
        assert wire.connection.reader.received_bytes - sent == first
        assert len(wire.frames()) == 600


def test_calls_and_long_messages_go_on_over_turns() -> None:
    big = bytes(range(256)) * 400
    with Wire() as wire:
        wire.send(HELLO + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)))
        wire.send(h2.window_update(0, 1 << 30))
        calls = b""
        for i in range(200):
            number = 2 * i + 1
            body = message(request(big if i % 50 == 49 else b"abc", call_id=str(i)))
            calls += head(number) + data(number, body)
        wire.send(calls)
        frames = wire.frames()
        for i in range(200):
            values = [big] if i % 50 == 49 else [b"abc"]
            assert outputs(wire.answers(frames, 2 * i + 1)[0]) == (str(i), values)


def test_others_come_before_the_rest_of_a_long_turn() -> None:
    with Turns(GrpcLimits()) as turns:
        greedy, modest = greet(turns), greet(turns)
        greedy.sendall(b"".join(map(ping, range(3000))))
        turns.one_turn()
        modest.sendall(ping(7))
        turns.one_turn()
        assert pings_of(modest) == [7]
        answered = pings_of(greedy)
        assert len(answered) <= 2 * FRAMES_A_TURN
        for _ in range(3000):
            if not turns.loop._unfinished:
                break
            turns.one_turn()
        assert answered + pings_of(greedy) == list(range(3000))


def test_who_does_not_read_answers_goes_on_when_it_does() -> None:
    with Turns(GrpcLimits(max_backlog_bytes=20_000, control_per_s=1e6)) as turns:
        client = greet(turns)
        (served,) = turns.loop._clients.values()
        connection, count, unsent = served.connection, 0, b""
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)

        def stopped() -> bool:
            """In the middle of what it had read, and the loop does not turn for nothing."""
            half = connection.writer.congested and connection.reader.unfinished
            return half and not turns.loop._unfinished

        while not stopped():
            if len(unsent) < 20_000:
                unsent += b"".join(map(ping, range(count, count + 1000)))
                count += 1000
            unsent = pushed(client, unsent)
            turns.one_turn()
        got, ends_s = b"", time.monotonic() + 60.0
        while len(got) < count * len(ping(0)) or len(pings_in(got)) < count:
            assert time.monotonic() < ends_s
            unsent = pushed(client, unsent)
            with suppress(BlockingIOError):
                got += client.recv(1 << 20)
            turns.one_turn()
        assert pings_in(got) == list(range(count))


def pushed(client: socket.socket, unsent: bytes) -> bytes:
    """Send what the socket takes; the rest."""
    client.setblocking(False)
    with suppress(BlockingIOError):
        return unsent[client.send(unsent) :] if unsent else b""
    return unsent


# ------------------------------------------------------------------------------------------ budgets


def flooded(wire: Wire, piece: Callable[[int], bytes], times: int = 2000) -> None:
    """It was told to calm down before it had sent all."""
    for number in range(1, 2 * times, 2):
        wire.send(piece(number))
        wire.frames()
        if wire.fault is not None:
            assert wire.fault.code == h2.ENHANCE_YOUR_CALM
            return
    raise AssertionError("it was never stopped")


def test_heads_in_a_thousand_pieces_are_stopped() -> None:
    with Wire(FEW) as wire:
        wire.send(HELLO + h2.frame(h2.HEADERS, 0, 1, head_block()[:3]))
        flooded(wire, lambda number: h2.frame(h2.CONTINUATION, 0, 1, b"") * 10)


@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/no.Such/Method", {}),
        (INFER, {"grpc-encoding": "brotli"}),
        (INFER, {"content-type": "text/plain"}),
        (INFER, {"grpc-timeout": "soon"}),
    ],
)
def test_calls_that_fail_at_once_are_stopped(path: str, extra: dict[str, str]) -> None:
    with Wire(FEW) as wire:
        wire.send(HELLO)
        flooded(wire, lambda number: head(number, path, extra) + data(number, b""))


def test_calls_that_fail_later_are_not_the_connections_fault() -> None:
    with Wire(FEW) as wire:
        wire.send(HELLO)
        for number in range(1, 1001, 2):
            wire.send(head(number) + data(number, b"\0\0\0\0\3abc"))
        assert wire.fault is None


def test_two_changes_of_the_tables_size_are_allowed() -> None:
    with Wire() as wire:
        block = b"\x20\x3f\xe1\x1f" + head_block()
        wire.send(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
        wire.send(data(1, message(request(b"abc"))))
        assert outputs(wire.answers(wire.frames(), 1)[0]) == ("", [b"abc"])


def test_who_reads_a_long_answer_may_update_windows_for_each_of_its_frames() -> None:
    big = bytes(600_000)
    with Wire(GrpcLimits(control_per_s=1.0)) as wire:
        wire.send(HELLO + head(1, STREAM))
        got = 0
        for number in range(3, 23, 2):
            wire.send(head(number) + data(number, message(request(big))))
            taken = 0
            while taken < len(big):
                for one in wire.frames():
                    if one.kind == h2.DATA:
                        taken += len(one.payload)
                        size = len(one.payload)
                        wire.send(h2.window_update(0, size) + h2.window_update(number, size))
            got += 1
        assert wire.fault is None and got == 10


# ------------------------------------------------------------------------------------- coming back


def calmed(turns: Turns) -> tuple[socket.socket, int]:
    """A client that floods until it is cut off, and how many of its pings were answered."""
    client = greet(turns)
    for number in range(100):
        with suppress(OSError):
            client.sendall(b"".join(map(ping, range(number * 50, number * 50 + 50))))
        for _ in range(50):
            turns.one_turn()
            if not turns.loop._unfinished:
                break
        if turns.loop.connections == 0:
            break
    assert turns.loop.connections == 0
    return client, len(pings_of(client))


def test_who_was_told_to_calm_down_hears_it_and_is_let_go_later() -> None:
    with Turns(GrpcLimits(control_per_s=100.0, linger_s=0.1)) as turns:
        client, _ = calmed(turns)
        assert not ended(client)  # it was not closed yet
        time.sleep(0.15)
        turns.loop._lingering.expire()
        assert ended(client)


def test_those_who_come_meanwhile_begin_with_less() -> None:
    with Turns(GrpcLimits(control_per_s=100.0, linger_s=60.0)) as turns:
        first = calmed(turns)[1]
        second = calmed(turns)[1]
        third = calmed(turns)[1]
        assert first >= 900 and third < second < 0.7 * first


def test_no_more_linger_than_may() -> None:
    with Turns(GrpcLimits(control_per_s=1.0, linger_s=60.0, max_lingering=2)) as turns:
        clients = [calmed(turns)[0] for _ in range(4)]
        assert [ended(client) for client in clients] == [True, True, False, False]
