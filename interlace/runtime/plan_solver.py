"""Answers the engine's planning questions: in another process, or inline in simulations."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Protocol

from interlace.core.messages import PlanSolved, SolvePlan
from interlace.policy.base import System
from interlace.runtime.clock import Clock
from interlace.runtime.plan_process import solve, solve_in_process

OnPlanned = Callable[[PlanSolved], None]


class PlanSolver(Protocol):
    """Answers each question once, later, on the runtime's thread; failures are answers too."""

    def __call__(self, question: SolvePlan, done: OnPlanned) -> None: ...


class InlinePlanSolver:
    """Plans at once, for simulations; the answer comes ``plan_ms`` of virtual time later."""

    def __init__(self, system: System, clock: Clock, plan_ms: float = 0.0) -> None:
        self._system = system
        self._clock = clock
        self._plan_ms = plan_ms

    def __call__(self, question: SolvePlan, done: OnPlanned) -> None:
        answer = solve(self._system, question)
        self._clock.call_at(self._clock.now_ms() + self._plan_ms, lambda: done(answer))


class ProcessPlanSolver:
    """Plans in another process, so that a search never delays a request."""

    def __init__(self, system: System, clock: Clock, executor: Executor) -> None:
        self._system = system
        self._clock = clock
        self._executor = executor

    def __call__(self, question: SolvePlan, done: OnPlanned) -> None:
        try:
            future = self._executor.submit(solve_in_process, self._system, question)
        except RuntimeError as error:  # the executor is broken or shut down
            answer = PlanSolved(question.ticket, question.current, f"no planner runs: {error}")
            self._clock.call_soon(lambda: done(answer))
            return
        future.add_done_callback(lambda ended: self._deliver(question, ended, done))

    def _deliver(self, question: SolvePlan, ended: Future[PlanSolved], done: OnPlanned) -> None:
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or error is not None:
            answer = PlanSolved(question.ticket, question.current, f"the planner broke: {error!r}")
        else:
            answer = ended.result()
        with suppress(RuntimeError):  # the loop is closed: nobody waits for a plan
            self._clock.call_soon(lambda: done(answer))
