"""Partitions that overlap: where they are planned, and what may run in them at once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import Outcome
from interlace.perf.memory import holds
from interlace.policy import admission
from interlace.policy.catalog import resolve
from interlace.policy.planners.max_scale import MaxScale
from interlace.policy.planners.overcommitted import Overcommitted
from interlace.policy.planners.patterns import Patterns
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.record import ServedRequest
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.testing.worlds import (
    FREE,
    LANES,
    SLICES,
    PlanningCase,
    fleet_of,
    planning_cases,
    scaled_profile,
    served_rows_per_s,
)

OURS = resolve("interlace")
FREELY = replace(FREE, traits=LANES.traits)


@settings(max_examples=40, deadline=None)
@given(case=planning_cases(kinds=(FREELY, LANES), least_rows_per_s=0.5))
def test_every_model_has_a_partition_wherever_memory_allows_or_there_is_no_plan(
    case: PlanningCase,
) -> None:
    demand, fleet, profiles = case
    plan = Overcommitted()(demand, fleet, profiles, Plan())
    assert all(plan.reasons[model] for model in plan.unserved_rows_per_s)
    refused = {m for m, r in plan.unserved_rows_per_s.items()} if not plan.partitions else set()
    everyone = {slot.model for p in plan.partitions for slot in p.slots}
    impossible = {m for m in plan.reasons if m not in everyone}
    assert everyone | impossible | refused == {one.model for one in demand}
    together = all(holds(gpu, [(100, sorted(everyone))], profiles) for gpu in fleet.gpus)
    for gpu in fleet.gpus:
        here = [p for p in plan.partitions if p.gpu == gpu.id]
        held = [(p.share_pct, [slot.model for slot in p.slots]) for p in here]
        assert holds(gpu, held, profiles)
        assert all(gpu.legal([p.share_pct]) for p in here)
        placed = {slot.model for p in here for slot in p.slots}
        assert placed == everyone or not together
    for one in demand:
        planned = served_rows_per_s(plan, one.model)
        assert planned == pytest.approx(one.rows_per_s) or one.model in plan.unserved_rows_per_s


@settings(max_examples=30, deadline=None)
@given(factor=st.floats(0.2, 5.0), rate=st.floats(10.0, 200.0))
def test_the_headroom_is_a_factor_on_every_rate(factor: float, rate: float) -> None:
    profiles = {m: scaled_profile(m, 2.0, 0.5, 40, 10) for m in ("a", "b")}

    def headroom(rows_per_s: float) -> float:
        demand = [Demand(m, rows_per_s, 60.0) for m in profiles]
        found = Overcommitted()(demand, fleet_of(FREELY, 1), profiles, Plan()).headroom
        assert found is not None
        return found

    assert headroom(rate * factor) * factor == pytest.approx(headroom(rate), rel=0.01)


def test_shares_are_where_a_row_costs_least() -> None:
    """Without a knee any share does, and the widest is the soonest; with one it is the knee."""
    knees = {"a": 40, "b": 100}
    profiles = {m: scaled_profile(m, 2.0, 0.5, knee, 10) for m, knee in knees.items()}
    demand = [Demand(m, 50.0, 100.0) for m in profiles]
    plan = Overcommitted()(demand, fleet_of(FREELY, 1), profiles, Plan())
    lanes = [(p.slots[0].model, p.share_pct) for p in plan.partitions]
    assert lanes[:2] == list(knees.items())
    # A row of b costs a little more on 80 %; of a, half as much again on 60 %.
    assert lanes[2:4] == [("a", 40), ("b", 80)]
    assert lanes[4:] == [("a", 40), ("b", 100)]  # for bursts: neither is slow where it is


def test_a_lane_for_bursts_is_at_most_three_times_as_slow_as_the_widest() -> None:
    """A row costs the less the narrower; a batch takes 3.1 times as long on a fifth."""
    known = {"m": scaled_profile("m", 2.0, 0.5, 100, 10)}
    points = {
        (batch, share): replace(point, p95_ms=ms, median_ms=ms)
        for (batch, share), point in known["m"].points.items()
        for ms in [(2.0 + 0.5 * batch) * (100 / share) ** 0.7]
    }
    known["m"] = replace(known["m"], points=points)
    plan = Overcommitted()([Demand("m", 5.0, 1000.0)], fleet_of(FREELY, 1), known, Plan())
    widths = [p.share_pct for p in plan.partitions]
    assert widths == [20, 20, 40]
    assert (100 / 40) ** 0.7 <= 3.0 < (100 / 20) ** 0.7


@pytest.mark.parametrize("shares", [(60, 50), (60, 30)], ids=["overlapping", "cut"])
def test_no_batch_begins_in_a_lane_too_slow_for_it(shares: tuple[int, ...]) -> None:
    """When the fast one is taken the rest would be late in the slow one."""
    known = {"m": scaled_profile("m", 4.0, 0.5, 100, 10)}
    lanes = [
        Partition(f"p{i}", "g0", share, (Slot("m", 1, 30.0),)) for i, share in enumerate(shares)
    ]
    plan = Plan(tuple(lanes), overlapping=True)
    outcomes = _outcomes([Demand("m", 60.0, 8.5)], plan, known)
    assert outcomes[Outcome.OK] > 10
    assert outcomes[Outcome.LATE] == 0


def test_narrower_lanes_fill_what_the_others_leave() -> None:
    """Two of 60 % run one at a time; where 40 % cost a row no more, the other runs beside one."""
    known = {m: scaled_profile(m, 2.0, 0.5, 60, 10) for m in "ab"}
    demand = [Demand(m, 900.0, 60.0, 16) for m in known]
    plans = [
        Overcommitted(dearer=dearer)(demand, fleet_of(FREELY, 1), known, Plan())
        for dearer in (0.0, 1.17)
    ]
    assert [sorted({p.share_pct for p in plan.partitions}) for plan in plans] == [[60], [40, 60]]
    alike, several = (_outcomes(demand, plan, known)[Outcome.OK] for plan in plans)
    assert several > 1.1 * alike


def test_where_memory_does_not_hold_all_on_each_accelerator_two_have_each_model() -> None:
    known, demand = {}, []
    for at in range(6):
        profile = _steep(scaled_profile(f"m{at}", 2.0, 0.5, 40, 10), 40)
        known[profile.model] = replace(profile, weights_bytes=3 << 30, activation_bytes=1 << 28)
        demand.append(Demand(profile.model, 100.0, 60.0, 16))
    fleet = fleet_of(replace(FREELY, memory_bytes=16 << 30), 3)
    plan = Overcommitted()(demand, fleet, known, Plan())
    hosts = Counter({(slot.model, p.gpu) for p in plan.partitions for slot in p.slots})
    assert Counter(model for model, _ in hosts) == dict.fromkeys(known, 2)
    assert not plan.unserved_rows_per_s and plan.overlapping
    tight = fleet_of(replace(FREELY, memory_bytes=5 << 30), 3)
    assert not Overcommitted()(demand, tight, known, Plan()).partitions


def test_gaps_beside_shares_are_no_headroom() -> None:
    """Two that take 60 % run one at a time, two that take 40 % side by side."""

    def headroom(knee_pct: int) -> float:
        known = {m: _steep(scaled_profile(m, 2.0, 0.5, knee_pct, 10), knee_pct) for m in "ab"}
        demand = [Demand(m, 200.0, 60.0, 16) for m in known]
        plan = Overcommitted()(demand, fleet_of(FREELY, 1), known, Plan())
        assert {p.share_pct for p in plan.partitions} == {knee_pct}
        assert plan.headroom is not None
        return plan.headroom

    assert headroom(60) == pytest.approx(0.5 * headroom(40), rel=0.05)


@pytest.mark.parametrize(
    "gpu", [FREE, replace(SLICES, traits=LANES.traits), GPU_KINDS["a100-mig"]], ids=lambda g: g.kind
)
def test_where_shares_are_fixed_beforehand_nothing_overlaps(gpu: Gpu) -> None:
    profiles = {"m": scaled_profile("m", 2.0, 0.5, 40, 10, gpu.shares_pct)}
    plan = Overcommitted()([Demand("m", 5.0, 100.0)], fleet_of(gpu, 1), profiles, Plan())
    assert not plan.partitions
    assert "fixed before" in plan.reasons["m"]
    ours = OURS.planner([Demand("m", 1e4, 100.0)], fleet_of(gpu, 1), profiles, Plan())
    assert not ours.overlapping


def _steep(profile: Profile, knee_pct: int) -> Profile:
    """The profile where a share below the knee costs a row more of the accelerator."""
    points = {
        (batch, share): replace(point, median_ms=ms, p95_ms=ms, p99_ms=ms)
        for (batch, share), point in profile.points.items()
        for ms in [point.p95_ms * max(1.0, knee_pct / share)]
    }
    return replace(profile, points=points)


#: (knee in %, fixed ms, row ms, SLO in ms) of models of which two fit side by side.
_FOUR = {"q0": (40, 2.0, 0.5, 30.0), "q1": (40, 2.0, 0.5, 30.0),
         "l0": (60, 8.0, 2.0, 150.0), "l1": (60, 8.0, 2.0, 150.0)}  # fmt: skip
_KNOWN = {m: _steep(scaled_profile(m, f, r, k, 10), k) for m, (k, f, r, _) in _FOUR.items()}


def _asked(quick_rps: float, long_rps: float) -> list[Demand]:
    rates = {"q": quick_rps, "l": long_rps}
    return [Demand(m, rates[m[0]], slo_ms, 16) for m, (*_, slo_ms) in _FOUR.items()]


def _outcomes(
    demand: list[Demand], plan: Plan, known: dict[str, Profile] = _KNOWN
) -> Counter[Outcome]:
    return Counter(one.outcome for one in _served(demand, plan, known))


def _served(
    demand: list[Demand], plan: Plan, known: dict[str, Profile], seconds: float = 3.0
) -> Sequence[ServedRequest]:
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, 1.0) for d in demand}, seconds, 1)
    record = simulate(
        Simulation(OURS, fleet_of(FREELY, 1), tuple(demand), known, known, arrivals, plan)
    )
    return record.served


_CUT = MaxScale(Patterns(), lowest=0.05, highest=12.8, steps=8)


def test_ours_overlaps_where_a_cut_falls_short_and_then_serves_more() -> None:
    few, many = _asked(200.0, 40.0), _asked(700.0, 140.0)
    assert not OURS.planner(few, fleet_of(FREELY, 1), _KNOWN, Plan()).overlapping
    plan = OURS.planner(many, fleet_of(FREELY, 1), _KNOWN, Plan())
    cut = _CUT(many, fleet_of(FREE, 1), _KNOWN, Plan())
    assert plan.overlapping and not cut.overlapping
    assert {p.slots[0].model: p.share_pct for p in plan.partitions} == {
        m: knee for m, (knee, *_) in _FOUR.items()
    }
    assert plan.headroom is not None and cut.headroom is not None
    assert plan.headroom > cut.headroom
    assert _outcomes(many, plan)[Outcome.OK] > 1.1 * _outcomes(many, cut)[Outcome.OK]


@st.composite
def overlaps(draw: st.DrawFn) -> Simulation:
    """Two to six partitions of any shares with one to three models each, and traffic for them."""
    gpu = replace(draw(st.sampled_from([FREELY, LANES])), id="g0", ahead_ms=draw(_AHEAD))
    knees = {m: draw(st.sampled_from([20, 40, 80])) for m in ("a", "b", "c")}
    profiles = {
        m: scaled_profile(m, draw(st.floats(0.5, 4.0)), 0.4, k, 10) for m, k in knees.items()
    }
    parts = []
    for index in range(draw(st.integers(2, 6))):
        here = draw(st.sets(st.sampled_from("abc"), min_size=1))
        slots = tuple(Slot(m, draw(st.integers(1, 8)), 50.0) for m in sorted(here))
        parts.append(Partition(f"p{index}", "g0", draw(st.sampled_from(gpu.shares_pct)), slots))
    placed = sorted({slot.model for part in parts for slot in part.slots})
    demand = tuple(
        Demand(m, draw(st.floats(20.0, 900.0)), draw(st.floats(10.0, 120.0))) for m in placed
    )
    arrivals = merge_arrivals(
        {d.model: Gamma(d.rows_per_s, draw(st.sampled_from([0.5, 1.0, 3.0]))) for d in demand},
        0.4,
        draw(st.integers(0, 99)),
    )
    plan = Plan(tuple(parts), overlapping=True)
    return Simulation(OURS, Fleet((gpu,)), demand, profiles, profiles, arrivals, plan)


_AHEAD = st.sampled_from([0.0, 1.5])


@settings(max_examples=60, deadline=None)
@given(scenario=overlaps())
def test_what_runs_at_once_never_exceeds_the_accelerator(scenario: Simulation) -> None:
    """Shares add up to at most 100 and no unit is used twice; each request has one answer."""
    record = simulate(scenario)
    (gpu,) = scenario.fleet.gpus
    runs = sorted(record.executions, key=lambda one: one.started_ms)
    for index, one in enumerate(runs):
        beside = [other for other in runs[:index] if other.ended_ms > one.started_ms + 1e-9]
        assert sum(gpu.taken(other.share_pct) for other in [one, *beside]) <= gpu.room
    sent = Counter(scenario.arrivals.models[which] for which in scenario.arrivals.which)
    assert Counter(one.model for one in record.served) == sent
    in_time = [one for one in record.served if one.outcome is Outcome.OK]
    assert all(one.answered_ms <= one.deadline_ms for one in in_time)


@pytest.mark.sources
def test_admission_knows_what_the_lanes_beside_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twice what the accelerator bears, more is refused at once and less of the rest is lost."""
    demand = _asked(1400.0, 280.0)
    plan = Overcommitted()(demand, fleet_of(FREELY, 1), _KNOWN, Plan())

    def lost() -> float:
        outcomes = _outcomes(demand, plan)
        accepted = outcomes.total() - outcomes[Outcome.REFUSED]
        return 1.0 - outcomes[Outcome.OK] / accepted

    aware = lost()
    monkeypatch.setattr(admission, "_crowded_ms", lambda *_: -1e9)
    assert aware < 0.8 * lost()


def test_long_batches_leave_room_for_a_model_that_cannot_wait_for_their_end() -> None:
    """Three of 40 ms within 400 would fill the accelerator, and lose what has 3 ms to wait."""
    known = {m: scaled_profile(m, 39.0, 1.0, 40, 10) for m in ("long0", "long1", "long2")}
    known["tight"] = scaled_profile("tight", 4.0, 1.0, 60, 10)
    demand = [Demand(m, 12.0, 8.0 if m == "tight" else 400.0, 8) for m in known]
    lanes = [
        Partition(m, "g0", 60 if m == "tight" else 40, (Slot(m, 1, 12.0),)) for m in sorted(known)
    ]
    outcomes = {
        model: Counter(one.outcome for one in record if one.model == model)
        for record in [_served(demand, Plan(tuple(lanes), overlapping=True), known, 20.0)]
        for model in known
    }
    assert outcomes["tight"][Outcome.OK] > 0.95 * outcomes["tight"].total() > 150
    assert all(outcomes[f"long{n}"].keys() == {Outcome.OK} for n in range(3))
