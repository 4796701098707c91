"""What a process was asked and has not answered: in order within a line, each with a limit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from interlace.core.messages import Failure

A = TypeVar("A")
_NEVER_S = float("inf")
#: So long what came while the loop did something else may still have to be read.
_READ_S = 0.05


@dataclass(frozen=True, slots=True)
class WorkTimeouts:
    """How long work may take before its worker is killed, in seconds; a ``Run`` says so itself."""

    carve_s: float = 60.0
    load_s: float = 300.0
    stage_s: float = 30.0


class PendingRequest(NamedTuple, Generic[A]):
    """Who hears the answer (or why there is none), how long it may take, and what was asked."""

    answer: Callable[[A | Failure], None]
    limit_s: float
    what: str


class _Line(Generic[A]):
    """Questions answered in the order asked; ``due_s`` is when the first must be.

    ``passed``: that was over once, and what had come by then is being read.
    """

    __slots__ = ("due_s", "passed", "questions")

    def __init__(self) -> None:
        self.questions: deque[PendingRequest[A]] = deque()
        self.due_s = _NEVER_S
        self.passed = False


class PendingRequests(Generic[A]):
    """Open questions by line. Answers of one line come in order, lines do not wait for each other.

    A limit counts from when the question became the first of its line, which is when it could
    begin. ``on_late`` hears of the first that took too long; not if its answer came in time, and a
    loop that stood still has not read it. Without open questions there are no timers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[str], None]) -> None:
        self._loop = loop
        self._on_late = on_late
        self._lines: dict[str, _Line[A]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = _NEVER_S

    def add(self, line: str, question: PendingRequest[A]) -> None:
        """A question was asked."""
        entry = self._lines.get(line)
        if entry is None:
            entry = self._lines[line] = _Line()
        entry.questions.append(question)
        if len(entry.questions) == 1:
            self._watch(entry, question.limit_s)

    def answered(self, line: str) -> PendingRequest[A]:
        """The question that an answer of this line is to."""
        entry = self._lines[line]
        question = entry.questions.popleft()
        if entry.questions:
            self._watch(entry, entry.questions[0].limit_s)
        else:
            entry.due_s = _NEVER_S
        return question

    def extend(self, line: str, by_s: float) -> None:
        """The first question of a line may take so much longer; a line without one passes."""
        entry = self._lines.get(line)
        if entry is not None and entry.questions:
            entry.due_s += by_s

    def close(self) -> list[PendingRequest[A]]:
        """What is still open, line by line; nothing is watched any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, {}
        return [question for line in lines.values() for question in line.questions]

    def forget(self, line: str) -> None:
        """Drop a line in which nothing is open."""
        entry = self._lines.get(line)
        if entry is not None and not entry.questions:
            del self._lines[line]

    def _watch(self, entry: _Line[A], limit_s: float) -> None:
        entry.due_s, entry.passed = self._loop.time() + limit_s, False
        if entry.due_s < self._timer_s:
            self._set_timer(entry.due_s)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer, self._timer_s = None, _NEVER_S
        first = min(self._lines.values(), key=lambda line: line.due_s, default=None)
        if first is None or first.due_s == _NEVER_S:
            return
        if self._loop.time() < first.due_s:
            self._set_timer(first.due_s)
            return
        if not first.passed:
            first.due_s, first.passed = self._loop.time() + _READ_S, True
            self._set_timer(first.due_s)
            return
        question = first.questions[0]
        self._on_late(f"'{question.what}' took longer than {question.limit_s:g} s")
