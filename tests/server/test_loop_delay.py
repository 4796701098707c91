"""How late the loop runs is measured, and put down to what held it."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from interlace.server.loop_delay import LoopDelay


class SteppedLoop:
    """A loop with one timer, called as late as a test says."""

    def __init__(self) -> None:
        self.now_s, self.cancelled = 0.0, False
        self._timer: tuple[float, Callable[[], None]] = (0.0, lambda: None)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "SteppedLoop":
        self._timer = self.now_s + delay_s, call
        return self

    def cancel(self) -> None:
        self.cancelled = True

    def turn(self, late_ms: float) -> None:
        at_s, call = self._timer
        self.now_s = at_s + late_ms / 1000.0
        call()


class Stand:
    """What is measured, with the time that other processes are said to have had."""

    def __init__(self) -> None:
        self.loop, self.waited_ms = SteppedLoop(), 0.0
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.delay = LoopDelay(loop, lambda: self.waited_ms)
        self.delay.start()


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.delay.close()
    assert made.loop.cancelled and not [one for one in gc.callbacks if "LoopDelay" in repr(one)]


def test_each_look_is_counted_by_how_late_it_came(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    for late_ms in (0.0, 0.2, 3.0, 19.0):
        stand.loop.turn(late_ms)
    assert stand.delay.delays.count == 4
    assert stand.delay.delays.sum_us == pytest.approx(22_200.0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("waited_ms", "collected_ms", "why"),
    [
        (30.0, 0.0, "other processes had the processor for 30 ms"),
        (2.0, 25.0, "a collection of garbage took 25 ms"),
        (2.0, 3.0, "the server's own process was at work"),
    ],
)
def test_a_long_delay_is_put_down_to_what_held_the_loop(
    stand: Stand,
    waited_ms: float,
    collected_ms: float,
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand.waited_ms = waited_ms
    (collects,) = [one for one in gc.callbacks if "LoopDelay" in repr(one)]
    collects("start", {})
    stand.loop.now_s += collected_ms / 1000.0
    collects("stop", {})
    stand.loop.turn(40.0)
    assert f"nothing was read or answered for 40 ms: {why}" in caplog.text


def test_warnings_come_once_a_minute(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    for late_ms in (50.0, 30.0, 70.0, 40.0):
        stand.loop.turn(late_ms)
    assert len(caplog.records) == 1
    for _ in range(3_000):
        stand.loop.turn(0.0)
    assert "70 ms, the longest of 3 delays" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
