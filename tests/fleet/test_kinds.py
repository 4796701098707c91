"""Kinds of accelerators in one fleet, and what each serves."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.fleet.fleet_gpus import models_of
from interlace.fleet.kinds import NO_PRICES, FleetCost, KindPrices, KindsPlanner
from interlace.policy.catalog import resolve
from interlace.testing.worlds import FREE, line_profile

FAST = replace(FREE, kind="fast", memory_bytes=10**9)
SLOW = replace(FREE, kind="slow", memory_bytes=10**9)
OURS = resolve("interlace").planner


def fleet(fast: int, slow: int) -> Fleet:
    def some(kind: Gpu, count: int) -> list[Gpu]:
        return [replace(kind, id=f"{kind.kind}{place}/gpu0") for place in range(count)]

    return Fleet((*some(FAST, fast), *some(SLOW, slow)))


def slower(profile: Profile, factor: float) -> Profile:
    points = {
        key: LatencyPoint(*(factor * ms for ms in (one.median_ms, one.p95_ms, one.p99_ms)), 1)
        for key, one in profile.points.items()
    }
    return replace(profile, points=points)


def kinds_of(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for part in plan.partitions:
        for model in models_of([part]):
            found.setdefault(model, set()).add(part.gpu.rstrip("0123456789/gpu"))
    return found


BASE = {name: line_profile(name, 2.0, 1.0) for name in ("m", "k", "l")}
PROFILES = {"fast": BASE, "slow": {name: slower(one, 3.0) for name, one in BASE.items()}}


def planned(
    demand: list[Demand],
    there: Fleet,
    current: Plan | None = None,
    prices: KindPrices = NO_PRICES,
) -> Plan:
    planner = KindsPlanner(OURS, PROFILES, prices)
    return planner(demand, there, {}, current or Plan())


def test_what_is_too_slow_on_one_kind_stands_on_the_other() -> None:
    urgent, patient = Demand("m", 100.0, 6.0), Demand("k", 100.0, 100.0)
    plan = planned([urgent, patient], fleet(1, 1))
    assert kinds_of(plan)["m"] == {"fast"}, "one row takes 5.4 ms at best on the slow one"
    assert "slow" in kinds_of(plan)["k"], "the fast one has the other to serve"
    assert not plan.underserved


def test_a_model_whose_profile_is_of_one_kind_stands_there_alone() -> None:
    profiles = {"fast": {"m": BASE["m"]}, "slow": PROFILES["slow"]}
    plan = KindsPlanner(OURS, profiles)(
        [Demand("m", 100.0, 50.0), Demand("k", 100.0, 100.0)], fleet(1, 1), {}, Plan()
    )
    assert kinds_of(plan) == {"m": {"fast"}, "k": {"slow"}}


def test_a_model_without_any_profile_is_named() -> None:
    plan = planned([Demand("other", 10.0, 50.0), Demand("m", 10.0, 50.0)], fleet(1, 1))
    assert "no profile" in plan.reasons["other"]
    assert plan.underserved == {"other"}


def test_more_than_one_kind_has_room_for_is_shared_by_both() -> None:
    alone = planned([Demand("m", 1000.0, 50.0)], fleet(1, 0)).headroom
    both = planned([Demand("m", 1000.0, 50.0)], fleet(1, 1))
    assert alone is not None and both.headroom is not None
    assert both.headroom > 1.05 * alone
    assert kinds_of(both) == {"m": {"fast", "slow"}}


def test_a_small_change_of_rates_moves_no_model_to_another_kind() -> None:
    demand = [Demand("m", 600.0, 50.0), Demand("k", 300.0, 60.0), Demand("l", 300.0, 40.0)]
    before = planned(demand, fleet(1, 2))
    for factor in (0.97, 1.03):
        moved = [replace(demand[0], rows_per_s=factor * demand[0].rows_per_s), *demand[1:]]
        assert kinds_of(planned(moved, fleet(1, 2), before)) == kinds_of(before)


def test_what_is_cheap_for_the_work_is_used_first() -> None:
    patient = [Demand(name, 100.0, 100.0) for name in ("m", "k")]
    for dear, cheap in ("fast", "slow"), ("slow", "fast"):
        prices = KindPrices({dear: 4.0, cheap: 1.0})
        assert kinds_of(planned(patient, fleet(1, 1), None, prices)) == {
            "m": {cheap},
            "k": {cheap},
        }


def test_price_per_work_decides_not_price() -> None:
    patient, prices = [Demand("m", 100.0, 100.0)], KindPrices({"fast": 2.0, "slow": 1.0})
    plan = planned(patient, fleet(1, 1), None, prices)
    assert kinds_of(plan) == {"m": {"fast"}}, "the slow one takes three times as long"


def test_what_only_the_dear_kind_serves_in_time_stands_there() -> None:
    urgent, patient = Demand("m", 100.0, 6.0), Demand("k", 100.0, 100.0)
    plan = planned([urgent, patient], fleet(1, 1), None, KindPrices({"fast": 9.0, "slow": 1.0}))
    assert kinds_of(plan) == {"m": {"fast"}, "k": {"slow"}}


def test_what_is_dear_takes_what_would_fill_the_cheap() -> None:
    there, prices = fleet(1, 1), KindPrices({"fast": 9.0, "slow": 1.0})
    room = planned([Demand("m", 100.0, 50.0)], fleet(0, 1)).headroom
    assert room is not None
    some = planned([Demand("m", 50.0 * room, 50.0)], there, None, prices)
    assert kinds_of(some) == {"m": {"slow"}}
    more = planned([Demand("m", 95.0 * room, 50.0)], there, None, prices)
    assert kinds_of(more) == {"m": {"fast", "slow"}}
    assert more.headroom is not None and more.headroom > 1.2


def test_accelerators_cost_what_their_kinds_do() -> None:
    gpus = fleet(1, 2).gpus
    prices = KindPrices({"fast": 9.0, "slow": 1.0})
    assert prices.cost(gpus, {"slow0/gpu0"}) == FleetCost(1.0, 11.0)
    assert NO_PRICES.cost(gpus, {"slow0/gpu0"}) is None
    assert KindPrices({"slow": 2.0}).of("fast") == 2.0, "the dearest, for all that is known"
    assert "--price fast=" in KindPrices({"slow": 2.0}).remark("fast")
    assert not NO_PRICES.remark("fast") and not prices.remark("fast")


def test_memory_counts_beside_time() -> None:
    half = {
        kind: {name: replace(one, weights_bytes=6 * 10**8) for name, one in known.items()}
        for kind, known in PROFILES.items()
    }
    demand = [Demand(name, 50.0, 100.0) for name in ("m", "k")]
    plan = KindsPlanner(OURS, half)(demand, fleet(1, 1), {}, Plan())
    assert not plan.underserved
    assert not kinds_of(plan)["m"] & kinds_of(plan)["k"], "an accelerator holds one of them"


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(1.0, 3000.0), st.floats(3.0, 200.0)), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_every_partition_is_of_a_kind_that_has_a_profile_and_all_is_accounted_for(
    asked: list[tuple[float, float]], fast: int, slow: int
) -> None:
    if not fast + slow:
        return
    demand = [Demand(name, rate, slo_ms) for name, (rate, slo_ms) in zip(BASE, asked, strict=False)]
    plan = planned(demand, fleet(fast, slow))
    there = {gpu.id for gpu in fleet(fast, slow).gpus}
    assert {part.gpu for part in plan.partitions} <= there
    stands = {model for part in plan.partitions for model in models_of([part])}
    for one in demand:
        left = plan.unserved_rows_per_s.get(one.model, 0.0)
        assert left <= one.rows_per_s * (1.0 + 1e-6)
        assert one.model in stands or one.model in plan.reasons
