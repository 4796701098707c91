"""A log as the page shows it: instants of it, and who was missed."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from msgspec import Struct

from interlace.cli.replaying.summary import MISSED, steps
from interlace.core.messages import SendReply
from interlace.core.request import Reply
from interlace.runtime.log import Replay
from interlace.server.page.frames import PageFrame, PageTally

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
