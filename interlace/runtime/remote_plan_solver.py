"""Answers the engine's planning questions with a plan that was given from outside."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.messages import PlanSolved, SolvePlan
from interlace.policy.base import Planner
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import OnPlanned


class RemotePlanSolver:
    """A ``PlanSolver`` that waits for the first plan, and from then on follows the newest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._planner: Planner | None = None
        self._open: Callable[[], None] | None = None

    def follow(self, planner: Planner) -> None:
        """Answer by this planner, also a question that waits."""
        self._planner = planner
        waiting, self._open = self._open, None
        if waiting is not None:
            waiting()

    def __call__(self, question: SolvePlan, done: OnPlanned) -> None:
        if self._planner is None:
            self._open = lambda: self(question, done)
            return
        made = self._planner(question.demand, question.fleet, question.profiles, question.current)
        self._clock.call_soon(lambda: done(PlanSolved(question.ticket, made)))
