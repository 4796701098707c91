"""A replay as a whole: whether it is the same, what happened, who was missed, states over time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

from msgspec import Struct

from interlace.core.messages import RefusedUpstream, RequestArrived, SendReply
from interlace.core.request import Outcome, Reply
from interlace.core.user_errors import InputError
from interlace.engine.engine import Engine
from interlace.policy.catalog import system_of
from interlace.runtime.log.codec import LogError, open_log
from interlace.runtime.log.replay import Replay, ReplayStep
from interlace.server.page.frames import PageFrame, PageTally
from interlace.sim.record import PartitionSpan, RunRecord
from interlace.sim.recorder import Recorder


def opened(path: Path, system: str | None = None) -> Replay:
    """The log in ``path``, ready to be replayed.

    A log is data: a system that it names as ``module:attribute`` is imported only if ``system``
    names the same.

    Raises:
        InputError: the file is no event log, or one of a system that is not known here, or that
            was not allowed.
        OSError: it cannot be read.
    """
    try:
        log = open_log(path)
    except LogError as error:
        raise InputError(str(error)) from None
    named = log.header.system
    if system is not None and system != named:
        raise InputError(f"{path}: the log is of the system {named}; --system says {system}")
    if system is None and ":" in named:
        raise InputError(
            f"{path}: the log names code, {named}, which is not run for a file's sake; "
            f"if you trust it, add --system {named}"
        )
    try:
        return Replay(log, system_of(named))
    except InputError as error:
        raise InputError(f"the system that wrote the log is not here: {error}") from None


def steps(replay: Replay) -> Iterator[ReplayStep]:
    """Every event, decided again. The engine of a step is live: it changes with the next.

    Raises:
        InputError: the log is damaged.
    """
    try:
        yield from replay.steps()
    except LogError as error:
        raise InputError(str(error)) from None


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


def summary(replay: Replay) -> Summary:
    """Replay the whole log.

    Raises:
        InputError: the log is damaged.
    """
    found = Summary()
    for step in steps(replay):
        if not found.events:
            found.first_ms = step.now_ms
            _resume(found.recorder, replay.begin()[0], step.now_ms)
        found.events += 1
        found.last_ms = step.now_ms
        if isinstance(step.event, RequestArrived):
            found.requests += 1
        elif isinstance(step.event, RefusedUpstream):
            found.requests += step.event.requests
            found.outcomes[Outcome.REFUSED.value] += step.event.requests
        found.recorder(step.now_ms, step.event, step.commands)
        if not step.same and found.differs_ms is None:
            found.differs_ms = step.now_ms
        for command in step.commands:
            if isinstance(command, SendReply):
                found.outcomes[command.reply.outcome.value] += 1
                if command.reply.outcome in MISSED:
                    found.missed.append(command.reply)
    return found


def record(found: Summary, replay: Replay) -> RunRecord:
    """What the log holds of the measured span: its header says when that was, else all of it."""
    header = replay.log.header
    gpus = [gpu.id for gpu in header.fleet.gpus]
    if header.until_ms is not None:
        return found.recorder.record(header.from_ms, header.until_ms, gpus)
    return found.recorder.record(found.first_ms, found.last_ms, gpus)


def _resume(recorder: Recorder, engine: Engine, from_ms: float) -> None:
    """Enter what stood and ran when the log was begun, if it follows another."""
    for live in engine.snapshot().partitions.values():
        span = PartitionSpan(live.gpu, live.id, live.share_pct, from_ms, inf)
        if live.batches:
            recorder.resume(span, live.batches[0].run, live.batches[0].started_ms)
        else:
            recorder.resume(span)


#: Missed requests that are listed: the last ones.
_LISTED: Final = 2_000
#: Between two instants, until there are too many.
_FINEST_MS: Final = 250.0


class MissedRequest(Struct, array_like=True, frozen=True):
    """A request that was not answered in time: when it came, when it ended, and how."""

    id: int
    model: str
    arrived_ms: float
    ended_ms: float
    outcome: str
    reason: str


class LogHistory(Struct, frozen=True):
    """Frames at equal distances, and the requests that were missed last; ``missed`` counts all."""

    system: str
    started: str
    frames: list[PageFrame]
    listed: list[MissedRequest]
    missed: int


def history(replay: Replay, frames: int) -> LogHistory:
    """Replay a log once; about ``frames`` instants of it, and counts since its beginning.

    Raises:
        InputError: the log is damaged.
    """
    header = replay.log.header
    tally, taken, missed = PageTally(), list[PageFrame](), 0
    listed: deque[MissedRequest] = deque(maxlen=_LISTED)
    every_ms, due_ms = _FINEST_MS, -inf
    for step in steps(replay):
        due_ms = step.now_ms if due_ms == -inf else due_ms
        if step.now_ms >= due_ms:
            taken.append(tally.frame(step.engine.snapshot(), step.now_ms))
            due_ms = step.now_ms + every_ms
            if len(taken) > 2 * frames:  # how long the log is, its end says
                taken, every_ms = taken[::2], every_ms * 2
        tally(step.now_ms, step.event, step.commands)
        for command in step.commands:
            if isinstance(command, SendReply) and command.reply.outcome in MISSED:
                missed += 1
                listed.append(_missed(command.reply, step.now_ms))
    return LogHistory(header.system, header.started, taken, list(listed), missed)


def _missed(reply: Reply, now_ms: float) -> MissedRequest:
    request, error = reply.request, reply.error
    reason = error.reason.value if error is not None else ""
    return MissedRequest(
        request.id, request.model, request.arrived_ms, now_ms, reply.outcome.value, reason
    )
