"""Answers the engine's planning questions: in another process, or inline in simulations."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final

from msgspec import structs

from interlace.core.messages import PlanSolved, SolvePlan
from interlace.core.plan import Plan
from interlace.packing.bounds import lower_bound
from interlace.policy.base import Planner, System
from interlace.policy.fewest import first_of
from interlace.runtime.clock import Clock
from interlace.shm import children

LIMIT_S: Final = 60.0
#: Of a plan before which nothing is served: on a busy machine a late one is better than none.
_FIRST_LIMIT_S: Final = 600.0


def solve(planner: Planner, packer: Planner, question: SolvePlan) -> PlanSolved:
    """A system's plan for a question; if its planner raises, the exception as text."""
    try:
        return _answer(planner, packer, question)
    except Exception as error:  # a planner is a plug-in: what it raises must not stop serving
        return PlanSolved(question.ticket, Plan(), f"the planner raised {error!r}")


def _answer(planner: Planner, packer: Planner, question: SolvePlan) -> PlanSolved:
    """A fixed fleet is planned as a whole; on an elastic one the packer uses what it needs."""
    demand, profiles, current = question.demand, question.profiles, question.current
    if question.largest is None:
        plan = planner(demand, question.fleet, profiles, current)
        return PlanSolved(question.ticket, plan)
    ample, _ = first_of(packer, demand, question.largest, profiles, current)
    there = {gpu.id for gpu in question.fleet.gpus}
    if all(partition.gpu in there for partition in ample.partitions):
        return PlanSolved(question.ticket, ample, ample=ample)
    if not there:
        missing = {one.model: one.rows_per_s for one in demand}
        return PlanSolved(question.ticket, Plan(unserved_rows_per_s=missing), ample=ample)
    plan = packer(demand, question.fleet, profiles, current)
    return PlanSolved(question.ticket, plan, ample=ample)


def _priced(question: SolvePlan, solved: PlanSolved) -> PlanSolved:
    """The answer with prices, if the fleet is fixed and its accelerators are alike."""
    if question.largest is not None or not question.fleet.alike:
        return solved
    try:
        gpu = question.fleet.gpus[0]
        prices = lower_bound(question.demand, gpu, question.profiles).best.price
    except Exception:  # they are shown: serving does not depend on them
        return solved
    return structs.replace(solved, plan=replace(solved.plan, prices=dict(prices)))


def unsendable(system: System) -> str | None:
    """Why the system's planners cannot be sent to the planning process; ``None`` if they can."""
    try:
        pickle.dumps((system.planner, system.packer))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return (
            f"its planner cannot be sent to the planning process ({error}): make it a function or "
            "a dataclass at the top level of a module"
        )
    return None


def _begun(system: System, yields: bool = False) -> subprocess.Popen[bytes]:
    """A planning process that imports what these planners need, and waits for its question."""
    process = children.start(f"{__name__}:main", pipes=True, yields=yields)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended: who asks it hears why
        process.stdin.write(pickle.dumps((system.planner, system.packer)))
        process.stdin.flush()
    return process


class WarmProcess:
    """A planning process that has everything imported before there is a question.

    A fleet has one, which yields to nobody: until there is an answer requests for what was lost are
    refused on all machines, and the controller's own serves at most as a router. After each search,
    not beside it, the next one begins; it holds some 80 MB.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._lock = Lock()
        self._waiting: subprocess.Popen[bytes] | None = None
        self._searching = 0
        self._closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """The one that waits, or another; ``searched`` is called once it has ended."""
        with self._lock:
            self._searching += 1
            waiting, self._waiting = self._waiting, None
        return waiting or _begun(self._system)

    def searched(self) -> None:
        """One that was taken has ended."""
        with self._lock:
            self._searching -= 1
            if not (self._searching or self._waiting or self._closed):
                self._waiting = _begun(self._system)

    def close(self) -> None:
        """Have none from now on."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with waiting:
                waiting.kill()


class PlanningProcess:
    """As ``solve``, in a process of its own, which lives as long as the search.

    A search of seconds would otherwise hold the interpreter lock against every request. Plans are
    rare, and a process that waits idle (``warm``) holds memory.
    """

    def __init__(self, warm: WarmProcess | None = None) -> None:
        self._warm = warm
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False

    def solve(self, system: System, question: SolvePlan) -> PlanSolved:
        """It blocks, so it is called from a thread.

        The process yields its cores to requests, but for a first plan, or if it is warm.
        """
        if reason := unsendable(system):
            return PlanSolved(question.ticket, Plan(), reason)
        first = not question.current.partitions
        with self._lock:
            if self._given_up:
                return PlanSolved(question.ticket, Plan(), "the question was given up")
            process = self._warm.take() if self._warm else _begun(system, not first)
            self._process = process
        sent = pickle.dumps((system.planner, system.packer, question))
        try:
            return _asked(process, sent, question.ticket, _FIRST_LIMIT_S if first else LIMIT_S)
        finally:
            if self._warm:
                self._warm.searched()

    def give_up(self) -> None:
        """End the search at once, or keep it from beginning; any thread may."""
        with self._lock:
            self._given_up = True
            if self._process is not None:
                self._process.kill()


def _asked(
    process: subprocess.Popen[bytes], sent: bytes, ticket: int, limit_s: float
) -> PlanSolved:
    """The process's answer, or what became of it."""
    try:
        ended = children.finish(process, limit_s, sent)
    except subprocess.TimeoutExpired:
        return PlanSolved(ticket, Plan(), f"no plan within {limit_s:g} s")
    if ended.status:
        return PlanSolved(ticket, Plan(), f"the planning process broke: {ended.last_words}")
    answer = pickle.loads(ended.written)
    assert isinstance(answer, PlanSolved)
    return answer


def main() -> None:
    """The planning process: planners, then a question on standard input; the answer on output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what planners and their libraries print is no part of the answer
    pickle.load(sys.stdin.buffer)  # what it takes to plan is imported by now
    planner, packer, question = pickle.load(sys.stdin.buffer)
    with answers:
        pickle.dump(_priced(question, solve(planner, packer, question)), answers)


OnPlanned = Callable[[PlanSolved], None]
GiveUp = Callable[[], None]
#: Answers each question once, later, on the runtime's thread; failures are answers too. What it
#: returns gives the question up: no time is spent on it from then on, where that can be. Its answer
#: says nothing, if it comes.
PlanSolver = Callable[[SolvePlan, OnPlanned], GiveUp]


def _nothing() -> None:
    """Gives up what takes no time, or has taken it."""


class InlinePlanSolver:
    """Plans at once, for simulations; the answer comes ``plan_ms`` of virtual time later."""

    def __init__(self, system: System, clock: Clock, plan_ms: float = 0.0) -> None:
        self._system = system
        self._clock = clock
        self._plan_ms = plan_ms

    def __call__(self, question: SolvePlan, done: OnPlanned) -> GiveUp:
        answer = solve(self._system.planner, self._system.packer, question)
        self._clock.call_at(self._clock.now_ms() + self._plan_ms, lambda: done(answer))
        return _nothing


class ProcessPlanSolver:
    """Plans in another process, so that a search never delays a request."""

    def __init__(
        self, system: System, clock: Clock, executor: Executor, warm: WarmProcess | None = None
    ) -> None:
        self._warm = warm
        self._system = system
        self._clock = clock
        self._executor = executor

    def __call__(self, question: SolvePlan, done: OnPlanned) -> GiveUp:
        process = PlanningProcess(self._warm)
        try:
            future = self._executor.submit(process.solve, self._system, question)
        except RuntimeError as error:  # the executor is broken or shut down
            answer = PlanSolved(question.ticket, question.current, f"no planner runs: {error}")
            self._clock.call_soon(lambda: done(answer))
            return _nothing
        future.add_done_callback(lambda ended: self._deliver(question, ended, done))
        return process.give_up

    def _deliver(self, question: SolvePlan, ended: Future[PlanSolved], done: OnPlanned) -> None:
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or error is not None:
            answer = PlanSolved(question.ticket, question.current, f"the planner broke: {error!r}")
        else:
            answer = ended.result()
        with suppress(RuntimeError):  # the loop is closed: nobody waits for a plan
            self._clock.call_soon(lambda: done(answer))


class AssignedPlanSolver:
    """A ``PlanSolver`` that waits for the first assignment, and from then on follows the newest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._planner: Planner | None = None
        self._waiting: Callable[[], object] | None = None
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

    def __call__(self, question: SolvePlan, done: OnPlanned) -> GiveUp:
        if self._planner is None:
            self._waiting = lambda: self(question, done)
            return _nothing
        made = self._planner(question.demand, question.fleet, question.profiles, question.current)
        self._answering += 1
        self._clock.call_soon(lambda: self._answer(PlanSolved(question.ticket, made), done))
        return _nothing

    def _answer(self, solved: PlanSolved, done: OnPlanned) -> None:
        self._answering -= 1
        done(solved)
