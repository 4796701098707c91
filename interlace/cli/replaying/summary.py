"""A replay as a whole: is it the same, what happened, who was missed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from interlace.cli.replaying.play import steps
from interlace.core.messages import Answer, Arrived
from interlace.core.request import Outcome, Reply
from interlace.sim.record import Recorder

#: Outcomes that broke a promise, or were never made one.
MISSED = (Outcome.LATE, Outcome.EXPIRED, Outcome.REFUSED, Outcome.FAILED)


@dataclass(slots=True)
class Summary:
    """What a log holds. ``differs_ms`` is when the replay first decided otherwise."""

    events: int = 0
    requests: int = 0
    first_ms: float = 0.0
    last_ms: float = 0.0
    differs_ms: float | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    missed: list[Reply] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)


def summary(path: Path) -> Summary:
    """Replay the whole log.

    Raises:
        InputError: the file is no event log.
    """
    found = Summary()
    for step in steps(path):
        if not found.events:
            found.first_ms = step.now_ms
        found.events += 1
        found.last_ms = step.now_ms
        found.requests += isinstance(step.event, Arrived)
        found.recorder(step.now_ms, step.event, step.commands)
        if not step.same and found.differs_ms is None:
            found.differs_ms = step.now_ms
        for command in step.commands:
            if isinstance(command, Answer):
                found.outcomes[command.reply.outcome.value] += 1
                if command.reply.outcome in MISSED:
                    found.missed.append(command.reply)
    return found
