"""Answers the engine's planning questions with what this node was told."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.messages import PlanSolved, SolvePlan
from interlace.policy.base import Planner
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import OnPlanned


class AssignedPlanSolver:
    """A ``PlanSolver`` that waits for the first assignment, and from then on follows the newest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._planner: Planner | None = None
        self._waiting: Callable[[], None] | None = None
        self._answering = 0

    @property
    def answering(self) -> bool:
        """An answer is on its way to the engine."""
        return self._answering > 0

    def follow(self, planner: Planner) -> None:
        """Answer by this planner, also a question that waits."""
        self._planner = planner
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def __call__(self, question: SolvePlan, done: OnPlanned) -> None:
        if self._planner is None:
            self._waiting = lambda: self(question, done)
            return
        made = self._planner(question.demand, question.fleet, question.profiles, question.current)
        self._answering += 1
        self._clock.call_soon(lambda: self._answer(PlanSolved(question.ticket, made), done))

    def _answer(self, solved: PlanSolved, done: OnPlanned) -> None:
        self._answering -= 1
        done(solved)
