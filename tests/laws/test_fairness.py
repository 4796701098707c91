"""That the bound of ``policy.fairness`` is close, and that by deadline alone it is broken."""

from collections import Counter
from dataclasses import replace

import pytest

from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Outcome
from interlace.engine.live_partition import ServiceTags
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers import spatial
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.testing.fairness_laws import WatchedTurns, measured
from tests.builders import line_profile, machine

OURS = resolve("interlace")


def _two(slo_ms: float, other_slo_ms: float) -> Simulation:
    """Two models of one plan, each asking for twice what both can have."""
    profiles = {m: line_profile(m, 2.0, 0.5, speedup=1.0) for m in ("a", "b")}
    demand = (Demand("a", 2000.0, slo_ms), Demand("b", 2000.0, other_slo_ms))
    turns = tuple(Slot(m, 4, 250.0) for m in profiles)
    arrivals = merge_arrivals({m: Gamma(2000.0, 1.0) for m in profiles}, 3.0, 0)
    plan = Plan((Partition("p", "g0", 100, turns),))
    return Simulation(OURS, machine(), demand, profiles, profiles, arrivals, plan)


def _wide_and_narrow() -> Simulation:
    """A model that needs all of the accelerator, beside one with two partitions of half of it."""
    shapes = {"narrow": (2.0, 0.5), "wide": (10.0, 2.0)}
    profiles = {m: line_profile(m, *shape, speedup=1.0) for m, shape in shapes.items()}
    demand = (Demand("narrow", 4000.0, 20.0), Demand("wide", 400.0, 100.0))
    halves = [Partition(f"half{i}", "g0", 50, (Slot("narrow", 4, 400.0),)) for i in range(2)]
    whole = Partition("whole", "g0", 100, (Slot("wide", 4, 100.0),))
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, 1.0) for d in demand}, 3.0, 0)
    plan = Plan((*halves, whole), overlapping=True)
    return Simulation(OURS, machine(), demand, profiles, profiles, arrivals, plan)


def _side_by_side() -> float:
    """What "wide" is served of its plan over what "narrow" is."""
    served = simulate(_wide_and_narrow()).served
    rows = Counter(one.model for one in served if one.outcome is Outcome.OK)
    return (rows["wide"] / 100.0) / (rows["narrow"] / 800.0)


@pytest.mark.sources
def test_models_whose_partitions_overlap_contend_for_the_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fair = _side_by_side()
    monkeypatch.setattr(spatial, "starved", lambda slot, lost_rows: False)
    assert _side_by_side() > 0.3  # by its lag alone
    monkeypatch.setattr(ServiceTags, "lags_ms", lambda tags: {})
    assert fair > 0.3
    assert _side_by_side() < 0.05


@pytest.mark.sources
def test_a_model_of_which_one_after_the_other_is_lost_gets_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests end before a lag adds up, and each finds the accelerator full of others."""
    shapes = {"often": (2.0, 0.5), "rare": (20.0, 2.0)}
    profiles = {m: line_profile(m, *shape, speedup=1.0) for m, shape in shapes.items()}
    demand = (Demand("often", 4000.0, 20.0), Demand("rare", 4.0, 60.0))
    lanes = [Partition(f"half{i}", "g0", 50, (Slot("often", 4, 400.0),)) for i in range(2)]
    whole = Partition("whole", "g0", 100, (Slot("rare", 1, 4.0),))
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, 1.0) for d in demand}, 20.0, 0)
    plan = Plan((*lanes, whole), overlapping=True)
    scenario = Simulation(OURS, machine(), demand, profiles, profiles, arrivals, plan)

    def in_time() -> float:
        rare = [one for one in simulate(scenario).served if one.model == "rare"]
        assert len(rare) > 50
        return sum(one.outcome is Outcome.OK for one in rare) / len(rare)

    kept = in_time()
    monkeypatch.setattr(spatial, "starved", lambda slot, lost_rows: False)
    assert kept > 0.12  # one of each seven, at least
    assert in_time() < 0.02


@pytest.mark.sources
def test_an_overdue_model_would_wait_longer_if_others_passed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = _watched()
    monkeypatch.setattr(spatial, "_passes", lambda *decision: True)
    passed = _watched()
    assert kept.turns > 10
    assert not kept.late
    assert len(passed.late) > 10


def _watched() -> WatchedTurns:
    watched = WatchedTurns(OURS.dispatcher)
    simulate(replace(_wide_and_narrow(), system=replace(OURS, dispatcher=watched)))
    return watched


def test_who_is_behind_by_its_batches_but_for_rounding_is_owed_one() -> None:
    """Three times 7 rows at 350.976 a second, added up, are less than 21 rows at that rate."""
    profiles = {m: line_profile(m, 1.0, 0.5, speedup=1.0) for m in "bcd"}
    halves = (
        (Slot("c", 1, 20.0), Slot("b", 1, 278.0), Slot("d", 1, 278.0)),
        (Slot("c", 7, 350.976), Slot("b", 1, 20.0), Slot("d", 1, 20.0)),
    )
    plan = Plan(tuple(Partition(f"p{i}", "g0", 50, slots) for i, slots in enumerate(halves)))
    arrivals = merge_arrivals({m: Gamma(4000.0, 0.5) for m in profiles}, 1.0, 0)
    demand = tuple(Demand(m, 4000.0, 15.0) for m in profiles)
    found = measured(Simulation(OURS, machine(), demand, profiles, profiles, arrivals, plan), OURS)
    assert found.pairs > 300
    assert 0.9 < found.worst < 1.0


@pytest.mark.sources
def test_by_deadline_alone_the_gap_is_far_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = measured(_two(20.0, 200.0), OURS)
    monkeypatch.setattr(ServiceTags, "lags_ms", lambda tags: {})
    alone = measured(_two(20.0, 200.0), OURS)
    assert fair.pairs > 300
    assert alone.pairs > 300
    assert 0.5 < fair.worst < 1.0
    assert alone.worst > 3.0
