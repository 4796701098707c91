"""What a dispatcher and an admission keep, checked at every decision of short random runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu, Trait
from interlace.core.messages import Command, Event, RequestArrived, Run, SendReply
from interlace.core.plan import Demand, Plan
from interlace.core.request import Outcome, Request
from interlace.engine.engine import Engine
from interlace.policy.base import Admission, Dispatcher, System
from interlace.policy.decision import Dispatch, Refusal
from interlace.policy.view import View
from interlace.sim.arrivals import Arrivals, Gamma, merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import FixedPlan, simulate
from interlace.sim.scenario import Simulation
from interlace.testing.law import law, single_case
from interlace.testing.worlds import line_profile, machine

MODELS: Final = ("a", "b", "c")
#: An accelerator whose partitions cannot overlap, with more shares than two.
_SLICED: Final = Gpu("g0", "test", 4, 10**9, (50, 60, 70, 80, 100), layouts=((50, 50), (100,)))
#: One whose shares are a launch's choice.
_LANES: Final = replace(machine().gpus[0], traits=frozenset({Trait.SHARE_AT_LAUNCH}))
_PROFILES: Final = {m: line_profile(m, 1.0 + i, 0.4 + 0.2 * i) for i, m in enumerate(MODELS)}


class TrafficCase(NamedTuple):
    """Half a second of three models on one accelerator."""

    gpu: Gpu
    demand: tuple[Demand, ...]
    cv: float
    seed: int

    def scenario(self, system: System) -> Simulation:
        """The run of these requests by a system, its plan made beforehand."""
        fleet = Fleet((self.gpu,))
        arrivals = merge_arrivals(
            {d.model: Gamma(d.rows_per_s, self.cv) for d in self.demand}, 0.5, self.seed
        )
        plan = system.planner(self.demand, fleet, _PROFILES, Plan())
        return Simulation(system, fleet, self.demand, _PROFILES, _PROFILES, arrivals, plan)


@st.composite
def traffics(draw: st.DrawFn) -> TrafficCase:
    rates, slos = st.floats(5.0, 500.0), st.floats(8.0, 120.0)
    gpu = draw(st.sampled_from([*machine().gpus, _SLICED, _LANES]))
    gpu = replace(gpu, ahead_ms=draw(st.sampled_from([0.0, 1.5])))
    demand = tuple(Demand(model, draw(rates), draw(slos)) for model in MODELS)
    return TrafficCase(
        gpu, demand, draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.integers(0, 99))
    )


@dataclass(frozen=True)
class _Watched:
    """A dispatcher whose every decision is checked."""

    inner: Dispatcher
    within_100: bool

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        before = _seen(view)
        decision = self.inner(view, now_ms)
        assert self.inner(view, now_ms) == decision, "not a function of what it sees"
        assert _seen(view) == before, "it changed what it looked at"
        self._check_launches(view, decision, now_ms)
        for drop in decision.drops:
            assert 0 < drop.requests <= view.queue(drop.model).rows
        if decision.wake_ms is not None:
            assert decision.wake_ms > now_ms, "it wakes itself without an end"
        return decision

    def _check_launches(self, view: View, decision: Dispatch, now_ms: float) -> None:
        partitions = {p.id: p for p in view.partitions}
        rows: Counter[str] = Counter()
        for launch in decision.launches:
            partition = partitions[launch.partition]
            assert partition.accepting and partition.takes(now_ms), "the partition is busy"
            assert launch.model in {slot.model for slot in partition.slots}, "it is not loaded"
            assert launch.rows >= 1
            assert view.queue(launch.model).rows > rows[launch.model], "more than is queued"
            rows[launch.model] += launch.rows
        used = [launch.partition for launch in decision.launches]
        assert len(set(used)) == len(used), "two batches for one partition"
        if self.within_100:
            running = [p.share_pct for p in partitions.values() if p.running or p.id in used]
            assert sum(running) <= 100
            held = [p.units_mask for p in partitions.values() if p.running or p.id in used]
            assert sum(mask.bit_count() for mask in held) == reduce(or_, held, 0).bit_count()


@dataclass(frozen=True)
class _WatchedAdmission:
    """An admission whose every answer is checked."""

    inner: Admission

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None:
        before = _seen(view)
        refusal = self.inner(request, view, now_ms)
        assert self.inner(request, view, now_ms) == refusal, "not a function of what it sees"
        assert _seen(view) == before, "it changed what it looked at"
        if refusal is not None:
            assert refusal.retry_after_ms is None or refusal.retry_after_ms > 0
            assert not _served_at_once(request, view, now_ms), "an idle partition could serve it"
        return refusal


def _served_at_once(request: Request, view: View, now_ms: float) -> bool:
    """True if a partition of the model is idle, nothing waits there, and it would be in time."""
    model, left_ms = view.model(request.model), request.deadline_ms - now_ms
    return any(
        host.running is None
        and not any(view.queue(slot.model).rows for slot in host.slots)
        and model.latency_ms(request.rows, host.share_pct, request.shape) <= left_ms
        for host in model.hosts
    )


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


@law(traffics(), examples=6)
def decisions_are_legal_and_every_request_is_answered_once(
    system: System, traffic: TrafficCase
) -> None:
    """Decisions are pure and possible; equal deadlines are served in order; a replay agrees."""
    watched = replace(
        system,
        dispatcher=_Watched(system.dispatcher, system.within_100),
        admission=_WatchedAdmission(system.admission),
    )
    scenario, log = traffic.scenario(watched), RunLog()
    simulate(scenario, [log])
    log.check_answers()
    _equal_deadlines_are_first_come_first_served(log)
    log.check_replay(scenario)


def _equal_deadlines_are_first_come_first_served(log: RunLog) -> None:
    """One SLO a model: its requests start in the order in which they came."""
    last: dict[str, int] = {}
    for _, _, commands in log.entries:
        for one in commands:
            if isinstance(one, Run):
                for request in one.batch.requests:
                    assert request.id > last.get(request.model, 0)
                    last[request.model] = request.id


class RunLog:
    """Events and commands of a run, which it observes."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Event, list[Command]]] = []

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self.entries.append((now_ms, event, list(commands)))

    def check_answers(self) -> None:
        """Each arrival has one answer, and each ``OK`` answer is in time."""
        sent = [e.request.id for _, e, _ in self.entries if isinstance(e, RequestArrived)]
        answers = [c.reply for _, _, cs in self.entries for c in cs if isinstance(c, SendReply)]
        assert Counter(sent) == Counter(reply.request.id for reply in answers)
        for now_ms, _, commands in self.entries:
            for one in commands:
                if isinstance(one, SendReply) and one.reply.outcome is Outcome.OK:
                    assert now_ms <= one.reply.request.deadline_ms

    def check_replay(self, scenario: Simulation) -> None:
        """A fresh engine answers the same events with the same commands."""
        assert scenario.plan is not None
        system = replace(scenario.system, planner=FixedPlan(scenario.plan))
        engine = Engine(scenario.fleet, system)
        for now_ms, event, commands in self.entries:
            assert engine.handle(event, now_ms) == commands


def _arrivals(seed: int) -> Arrivals:
    return merge_arrivals({f"m{i}": Gamma(150.0, 2.0) for i in range(3)}, 3.0, seed)


def _played(system: System, seed: int) -> RunRecord:
    profiles = {f"m{i}": line_profile(f"m{i}", 1.0 + i, 0.5) for i in range(3)}
    demand = tuple(Demand(model, 150.0, 40.0) for model in profiles)
    return simulate(Simulation(system, machine(), demand, profiles, profiles, _arrivals(seed)))


@single_case
def runs_answer_everyone_once_and_repeat_with_their_seed(system: System) -> None:
    first, again, other = _played(system, 1), _played(system, 1), _played(system, 2)
    assert repr(first) == repr(again)
    assert repr(first) != repr(other)
    sent = Counter(_arrivals(1).models[which] for which in _arrivals(1).which)
    assert Counter(one.model for one in first.served) == sent
    for one in first.served:
        if one.outcome is Outcome.OK:
            assert one.answered_ms <= one.deadline_ms
        if one.outcome in (Outcome.OK, Outcome.LATE):
            assert one.arrived_ms <= one.started_ms < one.answered_ms
    shares = {span.partition: span.share_pct for span in first.spans}
    assert all(shares[run.partition] == run.share_pct for run in first.executions)
