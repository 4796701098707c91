"""Inputs to be copied to a GPU, sent together: all that one turn of the event loop brings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from interlace.core.messages import CopyInputs, Failure, WorkFinished
from interlace.device.base import Done
from interlace.device.cuda.worker.wire import GpuAnswer, StagedInputs, StageInputs, StageRequest

#: Requests in a frame at most, which has a limit in bytes.
_FRAME_MAX: Final = 128

Ask = Callable[[StageInputs, Callable[[GpuAnswer | Failure], None]], None]


class StageBatcher:
    """Gathers what is to be staged and asks for it together; each is ended alone, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ask: Ask) -> None:
        self._loop = loop
        self._ask = ask
        self._waiting: list[tuple[CopyInputs, Done]] = []

    def add(self, work: CopyInputs, done: Done) -> None:
        """Ask for it before the loop waits again."""
        if not self._waiting:
            self._loop.call_soon(self.send)
        self._waiting.append((work, done))
        if len(self._waiting) == _FRAME_MAX:
            self.send()

    def send(self) -> None:
        """Ask for what there is, now."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            frame = StageInputs(tuple(_part(work) for work, _ in waiting))
            self._ask(frame, partial(_answered, waiting))


def _part(work: CopyInputs) -> StageRequest:
    request = work.request
    inputs = tuple((tensor.name, *tensor.span) for tensor in request.inputs)
    return StageRequest(request.model, work.slot, work.slots, request.rows, inputs)


def _answered(asked: list[tuple[CopyInputs, Done]], answer: GpuAnswer | Failure) -> None:
    failures: list[Failure | None] = [answer if isinstance(answer, Failure) else None] * len(asked)
    if isinstance(answer, StagedInputs):
        failures = [Failure(detail) if detail else None for detail in answer.failures]
    for (work, done), failure in zip(asked, failures, strict=True):
        done(WorkFinished(work, failure=failure))
