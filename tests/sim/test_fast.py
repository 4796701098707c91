"""The compiled simulator against the engine, event by event: not one time or batch differs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.engine.service_tags import ServiceTags
from interlace.policy.admission import DeadlineAdmission, admit_all
from interlace.policy.base import Admission, Dispatcher, System
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers.deadline import earliest_deadline
from interlace.policy.dispatchers.duty import duty
from interlace.sim.arrivals import Arrivals, merge_arrivals
from interlace.sim.record import RunRecord, ServedRequest
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma, poisson
from tests.builders import line_profile

pytest.importorskip("numba", reason="numba, an extra, is not installed")
from interlace.sim.fast.run import simulate_fast
from interlace.sim.fast.sweep import sweep

CUTS = ((100,), (50, 50), (40, 60), (20, 80), (20, 40, 40), (20, 20, 20, 20, 20))


def _profile(name: str, random: np.random.Generator) -> Profile:
    """A line with points at 20 % and 100 %; the 95th percentile up to 40 % above the median."""
    one = line_profile(name, float(random.uniform(0.2, 4.0)), float(random.uniform(0.05, 0.8)))
    over = float(random.uniform(1.0, 1.4))
    points = {
        (batch, {50: 20, 100: 100}[share]): replace(point, p95_ms=over * point.median_ms)
        for (batch, share), point in one.points.items()
    }
    return replace(one, points=points)


def _plan(names: list[str], gpus: int, random: np.random.Generator) -> Plan:
    """Random cuts; every model somewhere, some in several places."""
    cuts = [(f"g{g}", share) for g in range(gpus) for share in CUTS[random.integers(len(CUTS))]]
    slots: list[list[str]] = [[] for _ in cuts]
    for name in names:
        for place in random.permutation(len(cuts))[: random.integers(1, len(cuts) + 1)]:
            slots[place].append(name)
    return Plan(
        tuple(
            Partition(
                f"p{i:02}",
                gpu,
                share,
                tuple(
                    Slot(m, int(random.integers(1, 17)), float(random.integers(1, 100)))
                    for m in own
                ),
            )
            for i, ((gpu, share), own) in enumerate(zip(cuts, slots, strict=True))
        )
    )


def _scenario(seed: int, dispatcher: Dispatcher, admission: Admission) -> Simulation:
    random = np.random.default_rng(seed)
    gpus = int(random.integers(1, 4))
    names = [f"m{i}" for i in random.permutation(int(random.integers(1, 6)))]
    truth = {name: _profile(name, random) for name in names}
    wrong = random.random() < 0.5
    belief = {name: _profile(name, random) for name in names} if wrong else truth
    total_rps = float(random.uniform(200.0, 2500.0)) * gpus
    parts = random.dirichlet(np.ones(len(names)))
    demand = tuple(
        Demand(
            name, part * total_rps, float(random.uniform(3.0, 60.0)), int(random.integers(1, 33))
        )
        for name, part in zip(names, parts, strict=True)
    )
    cv = float(random.choice([1.0, 3.0]))
    workloads = {one.model: Gamma(one.rows_per_s, cv) for one in reversed(demand)}
    fleet = Fleet(
        tuple(Gpu(f"g{i}", "test", 5, 10**9, (20, 40, 50, 60, 80, 100)) for i in range(gpus))
    )
    return Simulation(
        _system(dispatcher, admission),
        fleet,
        demand,
        belief,
        truth,
        merge_arrivals(workloads, 1.0, seed),
        _plan(names, gpus, random),
        queue_limit=int(random.choice([5, 65_536])),
        epoch_ms=float("inf"),
    )


def _system(dispatcher: Dispatcher, admission: Admission) -> System:
    return replace(resolve("gpulet"), dispatcher=dispatcher, admission=admission)


def _key(one: ServedRequest) -> tuple[object, ...]:
    started = None if math.isnan(one.started_ms) else one.started_ms
    return (one.arrived_ms, one.model, *one[2:4], started, *one[5:])


def _answers(record: RunRecord) -> list[tuple[object, ...]]:
    return sorted((_key(one) for one in record.served), key=repr)


@pytest.mark.parametrize("admission", [admit_all, DeadlineAdmission()], ids=["everyone", "in-time"])
@pytest.mark.parametrize("dispatcher", [duty, earliest_deadline])
def test_every_batch_and_every_answer_are_the_engines(
    dispatcher: Dispatcher, admission: Admission
) -> None:
    outcomes: set[Outcome] = set()
    for seed in range(12):
        scenario = _scenario(seed, dispatcher, admission)
        slow, fast = simulate(scenario), simulate_fast(scenario)
        assert slow.executions == fast.executions, seed
        assert _answers(slow) == _answers(fast), seed
        outcomes |= {one.outcome for one in fast.served}
    assert outcomes == {Outcome.OK, Outcome.LATE, Outcome.REFUSED, Outcome.EXPIRED}


def test_requests_that_arrive_and_batches_that_end_at_one_time_keep_their_order() -> None:
    """Whole milliseconds everywhere: nearly every event has another at its time."""
    random = np.random.default_rng(3)
    profiles = {name: line_profile(name, 1.0, 1.0, speedup=1.0) for name in ("a", "b", "c")}
    times_ms = np.sort(random.integers(0, 2000, 1500)).astype(float)
    arrivals = Arrivals(("a", "b", "c"), times_ms, random.integers(0, 3, 1500, np.int32), 2.0)
    demand = tuple(Demand(name, 250.0, 20.0) for name in profiles)
    turns = tuple(Slot(name, 8, 100.0) for name in profiles)
    plan = Plan((Partition("p0", "g0", 50, turns), Partition("p1", "g0", 50, turns[1:])))
    fleet = Fleet((Gpu("g0", "test", 2, 10**9, (50, 100)),))
    for dispatcher in (duty, earliest_deadline):
        scenario = Simulation(
            _system(dispatcher, admit_all),
            fleet,
            demand,
            profiles,
            profiles,
            arrivals,
            plan,
            epoch_ms=float("inf"),
        )
        slow, fast = simulate(scenario), simulate_fast(scenario)
        assert slow.executions == fast.executions
        assert sorted(map(repr, slow.served)) == sorted(map(repr, fast.served))


def test_requests_that_run_far_longer_than_believed_are_given_up_as_the_engine_does() -> None:
    belief = {name: line_profile(name, 1.0, 1.0) for name in ("a", "b")}
    truth = {name: line_profile(name, 90.0, 10.0) for name in ("a", "b")}
    demand = tuple(Demand(name, 10.0, 60.0) for name in belief)
    plan = Plan((Partition("p0", "g0", 50, tuple(Slot(name, 8, 10.0) for name in belief)),))
    fleet = Fleet((Gpu("g0", "test", 2, 10**9, (50, 100)),))
    workloads = {name: poisson(10.0) for name in belief}
    scenario = Simulation(
        _system(duty, admit_all),
        fleet,
        demand,
        belief,
        truth,
        merge_arrivals(workloads, 5.0, 1),
        plan,
        epoch_ms=float("inf"),
    )
    slow, fast = simulate(scenario), simulate_fast(scenario)
    assert slow.executions == fast.executions
    assert _answers(slow) == _answers(fast)
    ends_ms = {one.ended_ms for one in fast.executions}
    expired = [one for one in fast.served if one.outcome is Outcome.EXPIRED]
    assert any(one.answered_ms in ends_ms for one in expired), "none was given up while it ran"
    assert len(expired) < len(fast.served)


@pytest.mark.parametrize("admission", [admit_all, DeadlineAdmission()], ids=["everyone", "in-time"])
def test_who_is_owed_a_batch_in_overload_is_the_engines(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as much is planned for long deadlines, and by deadline alone they would have less."""
    profiles = {name: line_profile(name, 2.0, 0.5) for name in ("a", "b", "c")}
    slos = {"a": 20.0, "b": 60.0, "c": 200.0}
    demand = tuple(Demand(name, 1000.0, slo) for name, slo in slos.items())
    turns = tuple(Slot(m, 4, rate) for m, rate in (("a", 400.0), ("b", 200.0), ("c", 200.0)))
    plan = Plan((Partition("p0", "g0", 50, turns), Partition("p1", "g0", 50, turns[1:])))
    scenario = Simulation(
        _system(earliest_deadline, admission),
        Fleet((Gpu("g0", "test", 2, 10**9, (50, 100)),)),
        demand,
        profiles,
        profiles,
        merge_arrivals({m: poisson(1000.0) for m in slos}, 2.0, 0),
        plan,
        epoch_ms=float("inf"),
    )
    slow, fast = simulate(scenario), simulate_fast(scenario)
    assert slow.executions == fast.executions
    assert _answers(slow) == _answers(fast)
    monkeypatch.setattr(ServiceTags, "behind_ms", lambda ledger, ahead: {})
    assert simulate(scenario).executions != slow.executions, "nobody was owed a batch"


def test_a_sweep_is_its_runs_one_by_one() -> None:
    scenario = _scenario(7, earliest_deadline, admit_all)
    loads = {
        load: {one.model: poisson(load * one.rows_per_s) for one in scenario.demand}
        for load in (0.2, 1.0, 3.0)
    }
    points = sweep(scenario, loads, seeds=(1, 2))
    for point, workloads in zip(points, loads.values(), strict=True):
        served = [
            one
            for seed in (1, 2)
            for one in simulate(
                replace(scenario, arrivals=merge_arrivals(workloads, 1.0, seed))
            ).served
        ]
        good = sum(one.outcome is Outcome.OK for one in served)
        assert point.offered_rps == len(served) / 2.0
        assert point.goodput_rps == good / 2.0
    assert points[0].attainment > points[-1].attainment


def test_what_only_the_engine_plays_is_refused_by_name() -> None:
    scenario = _scenario(1, duty, admit_all)
    with pytest.raises(ValueError, match="epoch_ms must be infinite"):
        simulate_fast(replace(scenario, epoch_ms=1000.0))
    with pytest.raises(ValueError, match="knows the dispatchers duty and deadline"):
        simulate_fast(replace(scenario, system=resolve("dstack")))
