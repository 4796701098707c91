"""Wakes: asked for once, delivered in time, even where a clock is early."""

from collections.abc import Callable, Sequence

import pytest

from interlace.core.messages import Command, EpochEnded, Event, WakeAt, Woke
from interlace.runtime.clock import SimClock
from interlace.runtime.runtime import Runtime

pytestmark = pytest.mark.sources  # a compiled class has no interpreted ones below it


class EarlyClock(SimClock):
    """Fires each call up to 0.4 ms too soon, as loops do that round to milliseconds."""

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        early_ms = min(0.4, (at_ms - self.now_ms()) / 2)
        super().call_at(at_ms - early_ms if early_ms > 1e-3 else at_ms, call)


class Alarm:
    """Wants to be woken at one time, and asks again as long as it has not come."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms
        self.woken_ms: list[float] = []

    def handle(self, event: Event, now_ms: float) -> Sequence[Command]:
        if isinstance(event, Woke):
            self.woken_ms.append(now_ms)
        return [WakeAt(self.at_ms)] if now_ms < self.at_ms else []


def test_a_clock_that_is_early_loses_no_wake() -> None:
    clock, alarm = EarlyClock(), Alarm(30.0)
    runtime = Runtime(alarm, clock, {}, lambda question, done: lambda: None)
    runtime.deliver(EpochEnded())
    clock.run(100.0)
    assert alarm.woken_ms == [30.0]


def test_a_later_wake_survives_an_earlier_one() -> None:
    clock, alarm = SimClock(), Alarm(30.0)
    runtime = Runtime(alarm, clock, {}, lambda question, done: lambda: None)
    runtime.deliver(EpochEnded())
    alarm.at_ms = 10.0
    runtime.deliver(EpochEnded())
    alarm.at_ms = 50.0
    clock.run(100.0)
    assert alarm.woken_ms == [10.0, 30.0, 50.0]
