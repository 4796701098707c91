"""Observers that keep little of a run: answer times, and requests that found a cold model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from interlace.core.messages import (
    Command,
    Event,
    Evict,
    Fetch,
    RequestArrived,
    SendReply,
    WorkFinished,
)
from interlace.core.request import Outcome
from interlace.policy.cold_curve import ColdCurve
from interlace.sim.record import AppServed

_OK: Final = Outcome.OK
_LATE: Final = Outcome.LATE


class AnswerTimes:
    """An observer of a runtime that keeps, by model or app, no more than that.

    Stages of an app are no requests of their own.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.taken_ms: dict[str, list[float]] = {}  #: endless where there was no result
        self.in_time: dict[str, int] = {}

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if type(command) is SendReply and command.reply.request.part is None:
                reply = command.reply
                request = reply.request
                self._count(request.model, reply.outcome, now_ms - request.arrived_ms)

    def app_ended(self, whole: AppServed) -> None:
        """Count a request of an app."""
        self._count(whole.app, whole.outcome, whole.answered_ms - whole.arrived_ms)

    def _count(self, name: str, outcome: Outcome, taken_ms: float) -> None:
        if name not in self.taken_ms:
            self.taken_ms[name], self.in_time[name] = [], 0
        self.requests += 1
        if outcome is _OK:
            self.in_time[name] += 1
        answered = outcome is _OK or outcome is _LATE
        self.taken_ms[name].append(taken_ms if answered else inf)


class ColdRequests:
    """Counts arrivals after ``from_ms`` by model, and those for which no accelerator was warm.

    What is held follows from fetches that ended and evictions, as the engine has it; partitions are
    taken to stay. ``curve_of`` tells what brings a model.
    """

    def __init__(self, curve_of: Callable[[str], ColdCurve], from_ms: float) -> None:
        self._curve_of = curve_of
        self._from_ms = from_ms
        self._held: dict[tuple[str, str], frozenset[int]] = {}
        self._warm: dict[str, set[str]] = {}  #: accelerators by model
        self.sent: dict[str, int] = {}
        self.cold: dict[str, int] = {}

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if type(event) is RequestArrived:
            if now_ms >= self._from_ms:
                self._count(event.request.model)
        elif type(event) is WorkFinished and isinstance(event.work, Fetch) and not event.failure:
            self._came(event.work)
        for command in commands:
            if isinstance(command, Evict):
                place = command.gpu, command.model
                self._held[place] = self._held.get(place, frozenset()).difference(command.layers)
                self._warm.get(command.model, set()).discard(command.gpu)

    def _count(self, model: str) -> None:
        self.sent[model] = self.sent.get(model, 0) + 1
        if not self._warm.get(model):
            self.cold[model] = self.cold.get(model, 0) + 1

    def _came(self, work: Fetch) -> None:
        place, curve = (work.gpu, work.model), self._curve_of(work.model)
        before = self._held.get(place, frozenset())
        self._held[place] = after = before.union(work.plan.brought)
        part = curve.missing(before)  # what is brought unasked need not be all of it
        if part is None or work.plan != part[1] or not curve.copied(after):
            self._warm.setdefault(work.model, set()).add(work.gpu)
