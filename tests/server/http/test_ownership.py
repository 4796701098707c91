"""Law: whatever befalls a request, its memory is given back once, and so is its reply's."""

import asyncio
import gzip
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Outcome, Reply
from interlace.core.tensor import Span, TensorSpec
from interlace.server.http.connection import HttpConnection
from interlace.server.http.timeouts import ConnectionTimeouts
from interlace.server.limits import HttpLimits
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks
from tests.server.fakes import model, one_to_one
from tests.server.http.test_fuzz import CuttingTransport, chunked, parts_on_a_loop
from tests.server.stand import Parts
from tests.server.wire import infer, request, v2_body

FLOATS = np.arange(30_000, dtype=np.float32).tobytes()
OUTCOMES = (Outcome.OK, Outcome.LATE, Outcome.FAILED, Outcome.EXPIRED, Outcome.REFUSED)


def _requests() -> list[bytes]:
    path = "/v2/models/{}/infer"
    pair = [("INPUT0", "UINT8", [1, 1], b"x"), ("INPUT1", "FP32", [1, 1], FLOATS[:4])]
    unaligned, headers = v2_body(pair)
    long, long_headers = v2_body([("INPUT0", "FP32", [1, 30_000], FLOATS)])
    short, short_headers = v2_body([("INPUT0", "FP32", [1, 2], FLOATS[:4])])
    small, small_headers = v2_body([("INPUT0", "FP32", [1, 1], FLOATS[:4])])
    text = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}'
    return [
        infer("ident", [[1.0]]),
        chunked(infer("ident", [[2.0] * 100])),
        request("POST", path.format("pair"), unaligned, headers),
        request("POST", path.format("ident"), long, long_headers),  # a reply of JSON in pieces
        request(
            "POST", path.format("ident"), long, {**long_headers, "Accept-Encoding": "gzip"}
        ),  # packed in a thread
        request("POST", path.format("ident"), short, short_headers),
        request("POST", path.format("ident"), text),
        request("POST", path.format("ident"), text.replace(b"[1]}", b"[1,2]}")),
        request("POST", path.format("ident"), b"{"),
        request("POST", path.format("nope"), small, small_headers),
        request("POST", path.format("ident"), FLOATS[:8], {"Inference-Header-Content-Length": "0"}),
        request(
            "POST",
            path.format("ident"),
            gzip.compress(small),
            {**small_headers, "Content-Encoding": "gzip"},
        ),
        request("POST", "/v2/models/ident/generate", b'{"INPUT0": [1.5]}'),
    ]


REQUESTS = _requests()
#: More often what takes a request further.
KINDS = "open send send send half reply reply reply lost_output give_up lose deaf listen turn turn"
STEPS = st.lists(
    st.tuples(st.sampled_from([*KINDS.split(), "late_cancel", "sweep"]), st.integers(0, 1 << 16)),
    min_size=5,
    max_size=60,
)


class Play:
    """Some connections to one server, and what befalls them."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.replies: list[Reply] = []
        self._open: list[tuple[HttpConnection, CuttingTransport]] = []
        self._timeouts = ConnectionTimeouts(HttpLimits())
        parts.runtime.hold = True
        parts.runtime.cancels = True
        parts.runtime.delivered_replies.clear()

    async def step(self, what: str, which: int) -> None:
        runtime = self.parts.runtime
        if what == "open" or not self._open:
            connection = HttpConnection(self.parts.http._state)
            self._open.append((connection, CuttingTransport(connection)))
            return
        connection, transport = self._open[which % len(self._open)]
        match what:
            case "send" | "half":
                data = REQUESTS[which % len(REQUESTS)]
                if transport.reading:
                    transport.feed(data if what == "send" else data[: which % len(data)])
            case "reply" | "lost_output" if runtime.held:
                self._reply(which, what == "lost_output")
            case "give_up" if runtime.held:
                give_up = runtime.give_ups.pop(runtime.held[which % len(runtime.held)][0].id, None)
                if give_up is not None:
                    give_up(ServeError(Reason.DEADLINE, "it runs for too long"))
            case "lose":
                self._lose(connection, transport)
            case "deaf":
                transport.deaf = True
            case "listen":
                transport.listen()
            case "turn":
                await asyncio.sleep(0.001 * (which % 2))
            case "late_cancel":
                runtime.cancels = not runtime.cancels
            case "sweep":
                for now_s in (0.0, 1e6):
                    self._timeouts.sweep(self.parts.http._state.connections, now_s)

    async def end(self) -> None:
        """Everybody leaves, and every request gets its reply."""
        for connection, transport in list(self._open):
            self._lose(connection, transport)
        while self.parts.runtime.held:
            self._reply(0, False)
        while self.parts.inference.context._tasks:
            await asyncio.sleep(0.001)

    def _lose(self, connection: HttpConnection, transport: CuttingTransport) -> None:
        self._open.remove((connection, transport))
        transport.closed = True
        connection.connection_lost(None)

    def _reply(self, which: int, lost_output: bool) -> None:
        runtime = self.parts.runtime
        asked, answer = runtime.held.pop(which % len(runtime.held))
        outcome = Outcome.OK if lost_output else OUTCOMES[which % len(OUTCOMES)]
        outputs = tuple(t._replace(name=t.name.replace("IN", "OUT", 1)) for t in asked.inputs)
        if lost_output:  # its bytes are in an arena that is gone
            outputs = tuple(t._replace(span=Span(12345, 0, t.span.nbytes)) for t in outputs)
        reply = Reply(asked, outcome, outputs)
        self.replies.append(reply)
        answer(reply)


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[asyncio.AbstractEventLoop, Parts]]:
    inputs = [TensorSpec("INPUT0", "UINT8", (-1,)), TensorSpec("INPUT1", "FP32", (-1,))]
    outputs = [TensorSpec("OUTPUT0", "UINT8", (-1,)), TensorSpec("OUTPUT1", "FP32", (-1,))]
    models = one_to_one("ident"), model("pair", inputs, outputs)
    with parts_on_a_loop(HttpLimits(here_bytes=1 << 18), *models) as made:
        yield made


class Heard(logging.Handler):
    """Keeps what internal errors were about."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(str(record.exc_info[1]) if record.exc_info else record.getMessage())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_befalls_a_request_its_memory_is_given_back_once(
    world: Any, steps: Sequence[tuple[str, int]]
) -> None:
    loop, parts = world
    play, heard = Play(parts), Heard()
    logger = logging.getLogger("interlace.server.errors")
    logger.addHandler(heard)

    async def run() -> None:
        for what, which in steps:
            await play.step(what, which)
        await play.end()

    try:
        loop.run_until_complete(run())
    finally:
        logger.removeHandler(heard)
    assert parts.plane.in_flight == 0
    assert parts.memory.arena.used_bytes == 0
    assert parts.inference.context.budget.used_bytes == 0
    assert not [error for error in heard.errors if "12345" not in error]
    delivered = Counter(map(id, parts.runtime.delivered_replies))
    assert set(delivered.values()) <= {1}
    assert {id(reply) for reply in play.replies} <= delivered.keys()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alloc", "take_over", "free"]), st.integers(0, 3), st.integers(0, 3)
        ),
        max_size=40,
    )
)
def test_a_block_has_one_owner(steps: list[tuple[str, int, int]]) -> None:
    """Owned by nobody twice: what owners hold is what the arena has given out."""
    arena = Arena.create(1 << 12)
    owners = [ArenaBlocks(arena) for _ in range(4)]
    for what, to, other in steps:
        match what:
            case "alloc":
                try:
                    owners[to].alloc(64)
                except ServeError as error:
                    assert error.reason is Reason.OVERLOADED
            case "take_over":
                before = len(owners[to]) + (len(owners[other]) if other != to else 0)
                owners[to].take_over(owners[other])
                assert len(owners[to]) == before
                assert other == to or not len(owners[other])
            case "free":
                owners[to].free()
                assert not len(owners[to])
        assert arena.used_bytes == 64 * sum(map(len, owners))
    for owner in owners:
        owner.free()
        owner.free()
    assert arena.used_bytes == 0
    arena.close()
