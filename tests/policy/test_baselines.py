"""Nexus, best-fit, GSLICE, whole accelerators, and how few accelerators do."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.tables import Tables
from interlace.policy.fewest import fewest
from interlace.policy.planners.gpulet import bestfit
from interlace.policy.planners.gslice import Gslice
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.nexus import Nexus
from interlace.policy.planners.whole_gpus import time_shared, time_shared_packed
from tests.policy.test_gpulet import SHARES, gpus, profile

KIND = Gpu("", "k", 100, 10_000, SHARES)


def _saturated(one: Profile, slo_ms: float, share_pct: int) -> float:
    return Tables({one.model: one}).saturated_rows_per_s(Demand(one.model, 1.0, slo_ms), share_pct)


def test_nexus_saturates_bins_and_merges_what_is_left() -> None:
    a, b = profile("a", 1.0, 100), profile("b", 1.0, 100)
    most_rows_per_s = _saturated(a, 100.0, 100)
    demand = [
        Demand("a", 2.25 * most_rows_per_s, 100.0),
        Demand("b", 0.25 * most_rows_per_s, 100.0),
    ]
    plan = Nexus()(demand, gpus(4), {"a": a, "b": b}, Plan())
    assert [[s.model for s in p.slots] for p in plan.partitions] == [["a"], ["a"], ["a", "b"]]
    assert [s.rows_per_s for s in plan.partitions[0].slots] == pytest.approx([most_rows_per_s])
    last = plan.partitions[-1]
    # The shorter of both cycles, and batches of what arrives in it.
    for slot in last.slots:
        assert slot.batch - 1 < slot.rows_per_s * last.duty_ms / 1000.0 <= slot.batch + 1e-6


def test_nexus_over_halves_has_two_bins_an_accelerator() -> None:
    a = profile("a", 1.0, 50)
    demand = [Demand("a", 2.0 * _saturated(a, 100.0, 50), 100.0)]
    plan = Nexus(2)(demand, gpus(4), {"a": a}, Plan())
    assert [(p.gpu, p.share_pct) for p in plan.partitions] == [("g0", 50), ("g0", 50)]
    uncut = Nexus()(demand, gpus(4), {"a": a}, Plan())
    assert {p.gpu for p in uncut.partitions} == {"g0", "g1"}


def test_nexus_serves_a_trickle_one_row_at_a_time() -> None:
    plan = Nexus()([Demand("a", 0.01, 50.0)], gpus(1), {"a": profile("a", 1.0, 50)}, Plan())
    (only,) = plan.partitions
    assert only.slots[0].batch == 1 and only.duty_ms == pytest.approx(50.0 - 2.0)


@pytest.mark.parametrize("rate_rps", [305.0, 310.0, 316.0])
def test_nexus_serves_what_lies_between_residual_and_saturated(rate_rps: float) -> None:
    """Whole batches gather too late, or take longer than they gather: the cycle ends earlier."""
    runs_ms = {1: 30.3, 30: 99.8, 31: 100.4, 32: 101.0}
    points = {(b, 100): LatencyPoint(ms, ms, ms, 1) for b, ms in runs_ms.items()}
    known = {"a": Profile("a", "", "k", 100, 1, points)}
    plan = Nexus()([Demand("a", rate_rps, 202.0)], gpus(3), known, Plan())
    assert not plan.unserved_rows_per_s and len(plan.partitions) == 1
    (slot,) = plan.partitions[0].slots
    assert plan.partitions[0].duty_ms * slot.rows_per_s / 1000.0 <= slot.batch


@settings(max_examples=100, deadline=None)
@given(
    fixed_ms=st.floats(0.1, 40.0),
    row_ms=st.floats(0.1, 10.0),
    slo_ms=st.floats(20.0, 300.0),
    part=st.floats(0.01, 0.999),
)
def test_nexus_serves_every_rate_below_the_saturated_one_with_one_bin(
    fixed_ms: float, row_ms: float, slo_ms: float, part: float
) -> None:
    a = profile("a", row_ms, 100, fixed_ms)
    rate = part * _saturated(a, slo_ms, 100)
    assume(rate > 0)
    plan = Nexus()([Demand("a", rate, slo_ms)], gpus(1), {"a": a}, Plan())
    assert not plan.unserved_rows_per_s


def test_best_fit_gives_a_remainder_whole_only_where_nothing_can_be_cut() -> None:
    a = profile("a", 1.0, 100)
    rate = _saturated(a, 100.0, 20) * 0.99
    profiles = {f"m{i}": replace(a, model=f"m{i}") for i in range(3)}
    demand = [Demand(name, rate, 100.0) for name in profiles]
    cut = Gpu("", "k", 100, 10_000, (20, 80, 100), layouts=((20, 80), (100,)))
    fleet = Fleet(tuple(replace(cut, id=f"g{i}") for i in range(2)))
    plan = bestfit(demand, fleet, profiles, Plan())
    assert [(p.gpu, p.share_pct) for p in plan.partitions] == [("g0", 20), ("g0", 80), ("g1", 20)]
    assert not plan.unserved_rows_per_s


def test_best_fit_takes_the_smallest_share_where_it_leaves_least() -> None:
    a = profile("a", 1.0, 100)
    rates = [_saturated(a, 100.0, share) * 0.99 for share in (60, 40, 20)]
    profiles = {f"m{i}": replace(a, model=f"m{i}") for i in range(3)}
    demand = [Demand(f"m{i}", rate, 100.0) for i, rate in enumerate(rates)]
    plan = bestfit(demand, gpus(3), profiles, Plan())
    shares = {p.slots[0].model: (p.gpu, p.share_pct) for p in plan.partitions}
    # By rate * SLO: 20, 40 beside it, then 60 finds only 40 left there and opens another.
    assert shares == {"m2": ("g0", 20), "m1": ("g0", 40), "m0": ("g1", 60)}
    assert all(len(p.slots) == 1 for p in plan.partitions)


def test_gslice_starts_at_the_knee_and_gives_away_what_is_left() -> None:
    a = profile("a", 1.0, 40)
    profiles = {"a": a, "b": replace(a, model="b")}
    demand = [Demand("a", 10.0, 100.0), Demand("b", 10.0, 100.0)]
    plan = Gslice()(demand, gpus(1), profiles, Plan())
    assert sorted(p.share_pct for p in plan.partitions) == [50, 50]


def test_whole_accelerators_are_as_few_as_do() -> None:
    a = profile("a", 1.0, 100)
    demand = [Demand("a", 2.5 * _saturated(a, 100.0, 100), 100.0)]
    assert len(time_shared(demand, gpus(8), {"a": a}, Plan()).partitions) == 8
    few = time_shared_packed(demand, gpus(8), {"a": a}, Plan())
    assert [p.gpu for p in few.partitions] == ["g0", "g1", "g2"] and not few.unserved_rows_per_s
    short = time_shared(demand, gpus(2), {"a": a}, Plan())
    assert short.unserved_rows_per_s["a"] == pytest.approx(demand[0].rows_per_s * 0.2, rel=1e-3)


@pytest.mark.parametrize("packer", [Nexus(), bestfit, time_shared_packed, Ideal()])
def test_the_fewest_accelerators_serve_all_and_one_less_does_not(packer: object) -> None:
    a = profile("a", 1.0, 100)
    demand = [Demand("a", 3.5 * _saturated(a, 100.0, 100), 100.0), Demand("hopeless", 1.0, 1.0)]
    profiles = {"a": a, "hopeless": replace(a, model="hopeless")}
    plan, fleet = fewest(packer, demand, KIND, 10, profiles)  # type: ignore[arg-type]
    assert len(fleet.gpus) == 4 and set(plan.unserved_rows_per_s) == {"hopeless"}
    less = packer(demand, Fleet(fleet.gpus[:3]), profiles, Plan())  # type: ignore[operator]
    assert less.unserved_rows_per_s["a"] > 0


def test_where_the_limit_is_too_small_the_plan_says_what_is_left() -> None:
    a = profile("a", 1.0, 100)
    demand = [Demand("a", 3.5 * _saturated(a, 100.0, 100), 100.0)]
    plan, fleet = fewest(Nexus(), demand, KIND, 2, {"a": a})
    assert len(fleet.gpus) == 2 and plan.unserved_rows_per_s["a"] > 0 and plan.reasons["a"]
