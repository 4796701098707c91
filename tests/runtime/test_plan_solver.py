"""Planning off the loop: the same answer everywhere, and a broken planner is an answer."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from time import sleep

import pytest
from msgspec import structs

from bench.harness.processes import descendants
from interlace.core.hardware import Fleet
from interlace.core.messages import PlanSolved, SolvePlan
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import (
    InlinePlanSolver,
    PlanningProcess,
    ProcessPlanSolver,
    WarmProcess,
)
from tests.builders import line_profile, machine

QUESTION = SolvePlan(7, (Demand("a", 10.0, 50.0),), Plan(), {"a": line_profile("a")}, machine())

pytestmark = pytest.mark.sources  # a compiled class has no interpreted ones below it


class _ThreadClock(SimClock):
    """Calls at once, on whichever thread asks."""

    def call_soon(self, call: object) -> None:
        call()  # type: ignore[operator]


def broken(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    raise ZeroDivisionError("planner bug")


def talkative(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    os.write(1, b"a banner of the library below")
    return Plan()


def by_whom(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    return Plan(notes=(str(os.getpid()),))


def endless(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    sleep(600.0)
    return Plan()


def _in_executor(row: System) -> PlanSolved:
    answered, answers = Event(), []
    with ThreadPoolExecutor(1) as executor:
        solver = ProcessPlanSolver(row, _ThreadClock(), executor)
        solver(QUESTION, lambda answer: (answers.append(answer), answered.set()))
        assert answered.wait(30.0)
    (answer,) = answers
    return answer


def test_both_solvers_give_the_planners_answer() -> None:
    row = resolve("gpulet")
    clock, answers = SimClock(), []
    InlinePlanSolver(row, clock)(QUESTION, answers.append)
    assert not answers, "the answer must come later"
    clock.run()
    (inline,), other = answers, _in_executor(row)
    assert 0.0 < other.plan.prices["a"] < 1.0, "prices are for people who watch a server"
    assert inline == structs.replace(other, plan=replace(other.plan, prices={}))
    assert inline.ticket == 7 and inline.plan.partitions


def test_a_planner_that_raises_is_an_answer_that_says_so() -> None:
    answer = _in_executor(replace(resolve("gpulet"), planner=broken))
    assert answer.failure is not None and "planner bug" in answer.failure


def test_what_a_planner_prints_is_no_part_of_its_answer() -> None:
    answer = _in_executor(replace(resolve("gpulet"), planner=talkative))
    assert answer == PlanSolved(7, Plan(prices=answer.plan.prices))


def test_an_executor_that_is_shut_down_is_an_answer_too() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    answers: list[PlanSolved] = []
    solver = ProcessPlanSolver(resolve("gpulet"), _ThreadClock(), executor)
    solver(QUESTION, answers.append)
    assert answers[0].failure is not None


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_question_that_is_given_up_costs_no_time(ahead: int) -> None:
    answered, answers = Event(), []
    with ThreadPoolExecutor(1) as executor:
        endless_solver = ProcessPlanSolver(
            replace(resolve("gpulet"), planner=endless), _ThreadClock(), executor
        )
        give_ups = [endless_solver(QUESTION, lambda answer: None) for _ in range(1 + ahead)]
        later = ProcessPlanSolver(resolve("gpulet"), _ThreadClock(), executor)
        later(QUESTION, lambda answer: (answers.append(answer), answered.set()))
        assert not answered.wait(0.5)
        for give_up in give_ups:
            give_up()
        assert answered.wait(30.0)
    assert answers[0].failure is None and answers[0].plan.partitions


def test_a_warm_process_is_there_before_its_question_and_not_after_it_is_closed() -> None:
    row = replace(resolve("gpulet"), planner=by_whom)
    others = set(descendants([os.getpid()]))  # of tests before this one
    warm = WarmProcess(row)
    try:
        PlanningProcess(warm).solve(row, QUESTION)
        there = set(descendants([os.getpid()])) - others
        answer = PlanningProcess(warm).solve(row, QUESTION)
        waiting = int(answer.plan.notes[0])
        assert waiting in there
    finally:
        warm.close()
    # Processes of others may begin meanwhile; this one has ended, if not in the same instant.
    for _ in range(100):
        if waiting not in descendants([os.getpid()]):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {waiting} still runs")
