"""One connection fed by a transport that cuts, stalls and breaks as it likes."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.core.model import Model
from interlace.server.api_keys import ApiKeys
from interlace.server.http.connection import HttpConnection
from interlace.server.http.request_head import Origins
from interlace.server.limits import HttpLimits
from interlace.server.shared_memory import Regions
from tests.server.fakes import one_to_one
from tests.server.stand import Parts
from tests.server.wire import infer, request, v2_body


class CuttingTransport:
    """Takes what is written; while ``deaf`` it keeps it, and tells the protocol to wait."""

    def __init__(self, connection: HttpConnection) -> None:
        self.out = bytearray()
        self.closed = False
        self.reading = True
        self.deaf = False
        self._kept: list[bytes] = []
        self._connection = connection
        connection.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str) -> None:
        """It is clear text."""

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: Sequence[bytes]) -> None:
        assert not self._kept, "written while paused"
        if self.deaf:
            self._kept = list(parts)
            self._connection.pause_writing()
        else:
            self.out += b"".join(parts)

    def listen(self) -> None:
        """Take what was kept."""
        self.deaf = False
        kept, self._kept = self._kept, []
        if kept:
            self.out += b"".join(kept)
            self._connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._kept))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def feed(self, data: bytes) -> None:
        """Give the protocol bytes as a socket would: as many as its buffer holds at a time."""
        while data and not self.closed:
            buffer = self._connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            assert count, "an empty buffer"
            buffer[:count] = data[:count]
            data = data[count:]
            self._connection.buffer_updated(count)


@contextmanager
def parts_on_a_loop(
    limits: HttpLimits, *models: Model
) -> Iterator[tuple[asyncio.AbstractEventLoop, Parts]]:
    """A server without a socket, and the loop that its connections are fed on."""
    loop = asyncio.new_event_loop()

    async def make() -> Parts:
        parts = Parts(limits, ApiKeys(), Origins(), Regions())
        parts.publish(*models)
        return parts

    parts = loop.run_until_complete(make())
    yield loop, parts
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    parts.memory.close()


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[asyncio.AbstractEventLoop, Parts]]:
    limits = HttpLimits(head_bytes=8192, body_bytes=1 << 20)
    with parts_on_a_loop(limits, one_to_one("ident")) as made:
        yield made


def chunked(data: bytes) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    head = re.sub(rb"\r\nContent-Length: \d+", b"\r\nTransfer-Encoding: chunked", head, count=1)
    half = len(body) // 2
    pieces = [piece for piece in (body[:half], body[half:]) if piece]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


def _infer(value: float, count: int) -> bytes:
    return infer("ident", np.full((1, count), value))


def _json_infer(value: float) -> bytes:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[%d]}]}' % int(
        value
    )
    return request("POST", "/v2/models/ident/infer", body)


REQUESTS = st.one_of(
    st.builds(_infer, st.integers(0, 9), st.sampled_from([1, 20, 3000, 20_000])),
    st.builds(_json_infer, st.integers(0, 9)),
    st.builds(lambda value: chunked(_infer(value, 5)), st.integers(0, 9)),
    st.just(request("GET", "/v2/health/live")),
    st.just(request("HEAD", "/v2")),
    st.just(request("POST", "/nowhere", b"x" * 100)),
    st.just(b"\r\n" + request("POST", "/v2/repository/index", b"{}")),
    st.just(request("POST", "/v2/models/ident/infer", *v2_body([("BAD", "INT8", [1], b"x")]))),
)


async def play(parts: Parts, pieces: Sequence[bytes], moods: Sequence[int]) -> CuttingTransport:
    """Feed the pieces; between two of them the moods say what else happens."""
    connection = HttpConnection(parts.http._state)
    transport = CuttingTransport(connection)
    for i, piece in enumerate(pieces):
        mood = moods[i % len(moods)] if moods else 0
        if mood == 1:
            transport.deaf = True
        elif mood == 2:
            transport.listen()
        elif mood == 3:
            await asyncio.sleep(0)
        for _ in range(1000):
            if transport.reading:
                break
            transport.listen()
            await asyncio.sleep(0)
        transport.feed(piece)
    for _ in range(300):
        transport.listen()
        await asyncio.sleep(0)
        if not parts.plane.in_flight and connection.phase == 0:
            break
    connection.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    return transport


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(REQUESTS, min_size=1, max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=12),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_cuts_and_stalls_change_nothing(
    world: Any, requests: list[bytes], cuts: list[int], moods: list[int]
) -> None:
    loop, parts = world
    data = b"".join(requests)
    expected = loop.run_until_complete(play(parts, requests, [3])).out
    found = loop.run_until_complete(play(parts, cut(data, cuts), moods)).out
    assert bytes(found) == bytes(expected)
    assert len(re.findall(rb"HTTP/1\.1 \d\d\d ", bytes(found))) >= len(requests)
    assert_nothing_left(parts)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(REQUESTS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=6)), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 20), max_size=6),
)
def test_damaged_requests_leave_nothing_behind(
    world: Any, requests: list[bytes], damage: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    loop, parts = world
    data = bytearray(b"".join(requests))
    for at, wrong in damage:
        start = at % min(len(data), 600)  # heads and JSON, mostly
        data[start : start + len(wrong)] = wrong
    transport = loop.run_until_complete(play(parts, cut(bytes(data), cuts), [3]))
    out = bytes(transport.out)
    assert out.startswith(b"HTTP/1.1 ") or not out
    assert b" 500 " not in out.partition(b"\r\n")[0]
    assert_nothing_left(parts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=6))
def test_noise_leaves_nothing_behind(world: Any, pieces: list[bytes]) -> None:
    loop, parts = world
    out = bytes(loop.run_until_complete(play(parts, pieces, [3])).out)
    assert out.startswith(b"HTTP/1.1 ") or not out
    assert_nothing_left(parts)


def assert_nothing_left(parts: Parts) -> None:
    service = parts.http._state
    assert parts.plane.in_flight == 0
    assert parts.memory.arena.used_bytes == 0
    assert service.budget.used_bytes == 0
    assert not service.connections
