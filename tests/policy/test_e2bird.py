"""The plan of E2bird: whole accelerators, engines of their own, turns where there are too few."""

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.planners.e2bird import E2bird
from interlace.policy.planners.whole_gpus import spread


def _profile(model: str, row_ms: float) -> Profile:
    times = {b: row_ms * (2 + b) for b in (1, 2, 4, 8, 16, 32)}
    points = {(b, 100): LatencyPoint(ms, ms, ms, 9) for b, ms in times.items()}
    return Profile(model, "d", "titan-rtx", 1 << 20, 1 << 20, points)


PROFILES = {"small": _profile("small", 0.5), "large": _profile("large", 2.0)}


def _fleet(count: int) -> Fleet:
    return Fleet(tuple(Gpu(f"g{i}", "titan-rtx", 72, 1 << 30, (50, 100)) for i in range(count)))


def _hosts(plan: Plan, model: str) -> list[str]:
    return [p.gpu for p in plan.partitions for slot in p.slots if slot.model == model]


def test_every_partition_is_a_whole_accelerator() -> None:
    demand = [Demand("small", 500.0, 100.0), Demand("large", 100.0, 200.0)]
    plan = E2bird()(demand, _fleet(3), PROFILES, Plan())
    assert [p.share_pct for p in plan.partitions] == [100, 100]
    assert not set(_hosts(plan, "small")) & set(_hosts(plan, "large"))
    assert not plan.unserved_rows_per_s


def test_with_one_accelerator_models_take_turns() -> None:
    demand = [Demand("small", 200.0, 100.0), Demand("large", 50.0, 200.0)]
    plan = E2bird()(demand, _fleet(1), PROFILES, Plan())
    assert {slot.model for slot in plan.partitions[0].slots} == {"small", "large"}
    assert not plan.unserved_rows_per_s


def test_a_busy_model_has_several_engines_and_the_rest_is_said() -> None:
    demand = [Demand("large", 5_000.0, 200.0)]
    plan = E2bird()(demand, _fleet(3), PROFILES, Plan())
    served = sum(slot.rows_per_s for p in plan.partitions for slot in p.slots)
    assert len(_hosts(plan, "large")) == 3
    assert served + plan.unserved_rows_per_s["large"] == pytest.approx(5_000.0)
    assert plan.reasons["large"]


def test_notes_name_the_workers_of_n_ebird() -> None:
    plan = E2bird()([Demand("small", 10.0, 34.0, 32)], _fleet(1), PROFILES, Plan())
    assert plan.notes == ("small: workers of 1, 1, 2, 4, 8, 16 rows",)


def test_the_whole_fleet_is_used_and_the_most_work_has_most_of_it() -> None:
    demand = [Demand("small", 100.0, 100.0), Demand("large", 100.0, 200.0)]
    plan = spread(demand, _fleet(3), PROFILES, Plan())
    assert {p.gpu for p in plan.partitions} == {"g0", "g1", "g2"}
    assert len(_hosts(plan, "large")) == 2 and len(_hosts(plan, "small")) == 1
    rates = {s.model: 0.0 for p in plan.partitions for s in p.slots}
    for p in plan.partitions:
        for slot in p.slots:
            rates[slot.model] += slot.rows_per_s
    assert plan.headroom is not None and plan.headroom > 1
    assert rates == pytest.approx(dict.fromkeys(rates, 100.0 * plan.headroom))


def test_too_much_work_is_served_in_equal_parts() -> None:
    demand = [Demand("small", 5_000.0, 100.0), Demand("large", 5_000.0, 200.0)]
    plan = spread(demand, _fleet(1), PROFILES, Plan())
    assert plan.headroom is not None and 0 < plan.headroom < 1
    assert plan.unserved_rows_per_s == pytest.approx(
        dict.fromkeys(("small", "large"), 5_000.0 * (1 - plan.headroom))
    )
    assert set(_hosts(plan, "small")) == set(_hosts(plan, "large")) == {"g0"}
