"""Laws of every dispatcher of the catalog, checked at every decision of random runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import Command, Event, RequestArrived, Run, SendReply
from interlace.core.plan import Demand, Plan
from interlace.core.request import Outcome
from interlace.engine.engine import Engine
from interlace.policy.base import Dispatcher
from interlace.policy.catalog import CATALOG
from interlace.policy.view import Dispatch, View
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.run import FixedPlan, simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma
from tests.builders import line_profile, machine

#: Rows that promise never to let the shares that run exceed the accelerator.
WITHIN_100 = {"dstack", "dstack-plain", "throughput", "maxmin"}
MODELS = ("a", "b", "c")
#: An accelerator whose partitions cannot overlap, with more shares than two.
SLICED = Fleet((Gpu("g0", "test", 4, 10**9, (50, 60, 70, 80, 100), layouts=((50, 50), (100,))),))
PROFILES = {m: line_profile(m, 1.0 + i, 0.4 + 0.2 * i) for i, m in enumerate(MODELS)}


@dataclass(frozen=True)
class Watched:
    """A dispatcher whose every decision is held against the laws."""

    inner: Dispatcher
    within_100: bool

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        before = _seen(view)
        decision = self.inner(view, now_ms)
        assert self.inner(view, now_ms) == decision, "not a function of what it sees"
        assert _seen(view) == before, "it changed what it looked at"
        partitions = {p.id: p for p in view.partitions}
        rows: Counter[str] = Counter()
        for launch in decision.launches:
            partition = partitions[launch.partition]
            assert partition.accepting
            assert partition.takes(now_ms)
            assert launch.model in {slot.model for slot in partition.slots}
            assert launch.rows >= 1
            assert view.queue(launch.model).rows > rows[launch.model], "more than is queued"
            rows[launch.model] += launch.rows
        used = [launch.partition for launch in decision.launches]
        assert len(set(used)) == len(used)
        for drop in decision.drops:
            assert 0 < drop.requests <= view.queue(drop.model).rows
        if decision.wake_ms is not None:
            assert decision.wake_ms > now_ms
        if self.within_100:
            running = [p.share_pct for p in partitions.values() if p.running or p.id in used]
            assert sum(running) <= 100
        return decision


def _seen(view: View) -> object:
    return [
        (
            p.id,
            p.accepting,
            p.running,
            p.takes(0.0),
            p.free_at_ms,
            [view.queue(s.model).rows for s in p.slots],
        )
        for p in view.partitions
    ]


class Log:
    """Events and commands of a run, and who arrived."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Event, list[Command]]] = []

    def __call__(self, now_ms: float, event: Event, commands: list[Command]) -> None:
        self.entries.append((now_ms, event, list(commands)))


@pytest.mark.parametrize("name", sorted(CATALOG))
@settings(max_examples=6, deadline=None)
@given(
    rates=st.lists(st.floats(5.0, 500.0), min_size=3, max_size=3),
    slos=st.lists(st.floats(8.0, 120.0), min_size=3, max_size=3),
    cv=st.sampled_from([0.5, 1.0, 3.0]),
    seed=st.integers(0, 99),
    sliced=st.booleans(),
    ahead_ms=st.sampled_from([0.0, 1.5]),
)
def test_laws(
    name: str,
    rates: list[float],
    slos: list[float],
    cv: float,
    seed: int,
    sliced: bool,
    ahead_ms: float,
) -> None:
    (gpu,) = (SLICED if sliced else machine()).gpus
    row, fleet = CATALOG[name], Fleet((replace(gpu, ahead_ms=ahead_ms),))
    demand = tuple(Demand(*one) for one in zip(MODELS, rates, slos, strict=True))
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, cv) for d in demand}, 0.5, seed)
    plan = row.planner(demand, fleet, PROFILES, Plan())
    watched = replace(row, dispatcher=Watched(row.dispatcher, name in WITHIN_100))
    scenario = Simulation(watched, fleet, demand, PROFILES, PROFILES, arrivals, plan)
    log = Log()
    simulate(scenario, [log])
    _each_arrival_has_one_answer(log)
    _equal_deadlines_are_first_come_first_served(log)
    _a_replay_says_the_same(log, scenario)


def _each_arrival_has_one_answer(log: Log) -> None:
    sent = [event.request.id for _, event, _ in log.entries if isinstance(event, RequestArrived)]
    answers = [c.reply for _, _, cs in log.entries for c in cs if isinstance(c, SendReply)]
    assert Counter(sent) == Counter(reply.request.id for reply in answers)
    for now_ms, _, commands in log.entries:
        for one in commands:
            if isinstance(one, SendReply) and one.reply.outcome is Outcome.OK:
                assert now_ms <= one.reply.request.deadline_ms


def _equal_deadlines_are_first_come_first_served(log: Log) -> None:
    """One SLO a model: its requests start in the order in which they came."""
    last: dict[str, int] = {}
    for _, _, commands in log.entries:
        for one in commands:
            if isinstance(one, Run):
                for request in one.batch.requests:
                    assert request.id > last.get(request.model, 0)
                    last[request.model] = request.id


def _a_replay_says_the_same(log: Log, scenario: Simulation) -> None:
    assert scenario.plan is not None
    system = replace(scenario.system, planner=FixedPlan(scenario.plan))
    engine = Engine(scenario.fleet, system)
    for now_ms, event, commands in log.entries:
        assert engine.handle(event, now_ms) == commands
