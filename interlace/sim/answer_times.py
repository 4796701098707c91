"""How long requests took to be answered, and how many were in time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from interlace.core.messages import Command, Event, SendReply
from interlace.core.request import Outcome, Reply

_OK: Final = Outcome.OK
_LATE: Final = Outcome.LATE


class AnswerTimes:
    """An observer of a runtime that keeps, by model, no more than that."""

    def __init__(self) -> None:
        self.requests = 0
        self.taken_ms: dict[str, list[float]] = {}  #: endless where there was no result
        self.in_time: dict[str, int] = {}

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if type(command) is SendReply:
                self._count(command.reply, now_ms)

    def _count(self, reply: Reply, now_ms: float) -> None:
        request, outcome = reply.request, reply.outcome
        model = request.model
        if model not in self.taken_ms:
            self.taken_ms[model], self.in_time[model] = [], 0
        self.requests += 1
        if outcome is _OK:
            self.in_time[model] += 1
        answered = outcome is _OK or outcome is _LATE
        self.taken_ms[model].append(now_ms - request.arrived_ms if answered else inf)
