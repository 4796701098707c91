"""The clock contract: the same script on every clock, in the same order."""

import asyncio
from collections.abc import Callable

import pytest

from interlace.runtime.clock import Clock, SimClock, WallClock

Script = Callable[[Clock, list[str]], None]


def _on_sim(script: Script) -> list[str]:
    clock, seen = SimClock(), []
    script(clock, seen)
    assert seen == [], "no call may run inside call_at or call_soon"
    clock.run(100.0)
    return seen


def _on_wall(script: Script) -> list[str]:
    seen: list[str] = []

    async def play() -> None:
        clock, done = WallClock(asyncio.get_running_loop()), asyncio.Event()
        script(clock, seen)
        assert seen == [], "no call may run inside call_at or call_soon"
        clock.call_at(clock.now_ms() + 150.0, done.set)
        async with asyncio.timeout(30.0):
            await done.wait()

    asyncio.run(play())
    return seen


clocks = pytest.mark.parametrize("play", [_on_sim, _on_wall])


@clocks
def test_calls_come_in_order_of_time(play: Callable[[Script], list[str]]) -> None:
    def script(clock: Clock, seen: list[str]) -> None:
        start_ms = clock.now_ms()
        clock.call_at(start_ms + 60.0, lambda: seen.append("late"))
        clock.call_at(start_ms + 20.0, lambda: seen.append("early"))
        clock.call_soon(lambda: seen.append("soon"))

    assert play(script) == ["soon", "early", "late"]


@clocks
def test_calls_that_are_due_keep_their_order(play: Callable[[Script], list[str]]) -> None:
    def script(clock: Clock, seen: list[str]) -> None:
        for name in "abc":
            clock.call_soon(lambda name=name: seen.append(name))

    assert play(script) == ["a", "b", "c"]


@clocks
def test_a_time_in_the_past_is_soon(play: Callable[[Script], list[str]]) -> None:
    def script(clock: Clock, seen: list[str]) -> None:
        clock.call_at(clock.now_ms() - 1_000.0, lambda: seen.append("past"))

    assert play(script) == ["past"]


@clocks
def test_time_has_come_when_a_call_is_made(play: Callable[[Script], list[str]]) -> None:
    def script(clock: Clock, seen: list[str]) -> None:
        due_ms = clock.now_ms() + 10.0
        # Loops round timers to their own tick, which may be early by up to a millisecond.
        clock.call_at(due_ms, lambda: seen.append(str(clock.now_ms() >= due_ms - 1.5)))

    assert play(script) == ["True"]


def test_ties_of_the_simulated_clock_go_by_order_of_asking() -> None:
    clock, seen = SimClock(), []
    for name in "abc":
        clock.call_at(5.0, lambda name=name: seen.append(name))
    clock.run()
    assert seen == ["a", "b", "c"] and clock.now_ms() == 5.0


def test_the_simulated_clock_stands_where_it_was_told_to() -> None:
    clock, seen = SimClock(), []
    clock.call_at(50.0, lambda: seen.append("x"))
    clock.run(20.0)
    assert clock.now_ms() == 20.0 and not seen
    clock.run(50.0)
    assert seen == ["x"]
