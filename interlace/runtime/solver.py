"""Planning off the loop: in a process of its own, or at once in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Protocol

from interlace.core.hardware import Fleet
from interlace.core.messages import Planned, Solve
from interlace.policy.base import Planner
from interlace.runtime.clock import Clock
from interlace.runtime.planning import solve, solve_apart

OnPlanned = Callable[[Planned], None]


class Solver(Protocol):
    """Answers a question once, later, on the runtime's thread; a broken planner is an answer."""

    def __call__(self, question: Solve, done: OnPlanned) -> None: ...


class InlineSolver:
    """Plans where it stands; for simulations, where time does not pass meanwhile."""

    def __init__(self, planner: Planner, fleet: Fleet, clock: Clock) -> None:
        self._planner = planner
        self._fleet = fleet
        self._clock = clock

    def __call__(self, question: Solve, done: OnPlanned) -> None:
        answer = solve(self._planner, self._fleet, question)
        self._clock.call_soon(lambda: done(answer))


class ExecutorSolver:
    """Plans in processes, started by an executor's thread: a search never delays a request."""

    def __init__(self, planner: Planner, fleet: Fleet, clock: Clock, executor: Executor) -> None:
        self._planner = planner
        self._fleet = fleet
        self._clock = clock
        self._executor = executor

    def __call__(self, question: Solve, done: OnPlanned) -> None:
        try:
            future = self._executor.submit(solve_apart, self._planner, self._fleet, question)
        except RuntimeError as error:  # the executor is broken or shut down
            answer = Planned(question.ticket, question.current, f"no planner runs: {error}")
            self._clock.call_soon(lambda: done(answer))
            return
        future.add_done_callback(lambda ended: self._deliver(question, ended, done))

    def _deliver(self, question: Solve, ended: Future[Planned], done: OnPlanned) -> None:
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or error is not None:
            answer = Planned(question.ticket, question.current, f"the planner broke: {error!r}")
        else:
            answer = ended.result()
        self._clock.call_soon(lambda: done(answer))
