"""Pools of models over alike partitions: how many hosts they need, and what the engine keeps."""

from collections import Counter
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planning.cost import question
from bench.planning.kept import held
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.packing.batch_options import batch_options, demand_arrays
from interlace.packing.bounds import lower_bound
from interlace.packing.pools import PoolMemory, _PoolModels, hosts_together
from interlace.packing.queueing import hosts_needed
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.planning.scenario import Scenario
from interlace.policy.planners.patterns import Patterns
from interlace.testing.worlds import line_profile

A100, MIG = GPU_KINDS["a100"], GPU_KINDS["a100-mig"]
POSITIVE = st.floats(0.01, 50.0)


def _hosts(
    load: float, variance_ms: float, longest_ms: float, slack_ms: float, loss: float
) -> float:
    arrays = (np.array([x]) for x in (load, variance_ms, longest_ms, slack_ms, loss))
    return float(hosts_needed(*arrays)[0])


@given(
    st.lists(
        st.tuples(st.floats(0.1, 2_000.0), st.floats(10.0, 300.0), st.floats(0.3, 3.0)),
        min_size=2,
        max_size=6,
    )
)
def test_a_pool_needs_what_the_search_for_pools_says(
    asked: list[tuple[float, float, float]],
) -> None:
    demand = [Demand(f"m{i}", rate, slo, cv=cv) for i, (rate, slo, cv) in enumerate(asked)]
    surfaces = [surface(line_profile(one.model, 4.0 + i)) for i, one in enumerate(demand)]
    options, arrays = batch_options(demand, surfaces, 50), demand_arrays(demand)
    order, nothing = np.argsort(arrays.slo_ms, kind="stable"), np.zeros(len(demand))
    models = _PoolModels(options, arrays, PoolMemory(nothing, nothing, {50: (1, np.inf)}), order)
    searched = models.hosts(np.inf)[0, len(demand) - 1]
    assert hosts_together(options, arrays) == pytest.approx(searched, rel=1e-9)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.floats(1e-4, 0.2))
def test_hosts_drain_what_waits_within_the_slack(
    load: float, variance_ms: float, longest_ms: float, slack_ms: float, loss: float
) -> None:
    hosts = _hosts(load, variance_ms, longest_ms, slack_ms, loss)
    assert hosts > load
    waits_ms = slack_ms - longest_ms / (2.0 * hosts)
    assert waits_ms > 0
    late = exp(-2.0 * (hosts - load) * hosts * waits_ms / variance_ms)
    assert late == pytest.approx(loss, rel=1e-6)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.floats(1e-4, 0.2), st.floats(1.01, 5.0))
def test_more_work_and_less_time_need_more_hosts(
    load: float, variance_ms: float, longest_ms: float, slack_ms: float, loss: float, more: float
) -> None:
    hosts = _hosts(load, variance_ms, longest_ms, slack_ms, loss)
    assert _hosts(load * more, variance_ms, longest_ms, slack_ms, loss) >= hosts
    assert _hosts(load, variance_ms * more, longest_ms, slack_ms, loss) >= hosts
    assert _hosts(load, variance_ms, longest_ms * more, slack_ms, loss) >= hosts
    assert _hosts(load, variance_ms, longest_ms, slack_ms / more, loss) >= hosts
    assert _hosts(load, variance_ms, longest_ms, slack_ms, loss / more) >= hosts
    assert _hosts(load, variance_ms, longest_ms, 0.0, loss) == np.inf


@pytest.mark.parametrize("kind", [A100, MIG], ids=["a100", "a100-mig"])
def test_plans_of_pools_are_legal_complete_and_above_the_bound(kind: Gpu) -> None:

    demand, known = question(80, 40, kind, seed=3)
    known = {m: replace(p, weights_bytes=2 * 10**9) for m, p in known.items()}
    there = uniform_fleet(kind, 300)
    plan = Patterns()(demand, there, known, Plan())
    assert plan == Patterns()(demand, uniform_fleet(kind, 300), known, Plan()), "deterministic"
    assert not plan.unserved_rows_per_s
    served: Counter[str] = Counter()
    for part in plan.partitions:
        for slot in part.slots:
            served[slot.model] += slot.rows_per_s
    for one in demand:
        assert served[one.model] == pytest.approx(one.rows_per_s, rel=1e-6)
        latency = surface(known[one.model])
        for part in plan.partitions:
            for slot in part.slots:
                if slot.model == one.model:
                    assert latency.latency_ms(slot.batch, part.share_pct) <= one.slo_ms
    used = [[p for p in plan.partitions if p.gpu == g.id] for g in there.gpus]
    for each in used:
        assert kind.legal([p.share_pct for p in each])
        assert holds(kind, [(p.share_pct, [s.model for s in p.slots]) for p in each], known)
    assert sum(map(bool, used)) >= lower_bound(demand, kind, known).gpus


def test_the_engine_keeps_pools_near_the_bound() -> None:
    """Where first fit of partitions of their own took 1.4 times the bound."""
    demand, known = question(40, 26, A100, seed=1)
    there = uniform_fleet(A100, 60)
    plan = Patterns()(demand, there, known, Plan())
    used = len({part.gpu for part in plan.partitions})
    assert used <= 1.2 * lower_bound(demand, A100, known).best.accelerators + 1
    scenario = Scenario(tuple(demand), A100, known)
    by_chance = 0.01 / len(demand)
    kept, (model, attainment, chance) = held(plan, there, scenario, 1, 0.5, by_chance)
    assert kept, f"{model}: {attainment:.4f} ({chance:.2g})"


@given(st.integers(1, 60), st.floats(5.0, 500.0), st.sampled_from([5, 10, 15, 40, 100]))
def test_options_are_what_the_surface_says(most: int, slo_ms: float, share: int) -> None:
    _, known = question(3, 2, A100, seed=most)
    demand = [Demand(m, 10.0, slo_ms, max_batch=most) for m in known]
    surfaces = [surface(one) for one in known.values()]
    found = batch_options(demand, surfaces, share)
    for index, latency in enumerate(surfaces):
        if share < latency.shares_pct[0]:
            assert not np.isfinite(found.latency_ms[index]).any()
            continue
        legal = np.isfinite(found.latency_ms[index])
        for batch, ms in zip(found.rows[index][legal], found.latency_ms[index][legal], strict=True):
            assert batch <= min(most, latency.measured_rows(share))
            assert ms == latency.latency_ms(int(batch), share) <= slo_ms


def test_a_share_that_is_in_no_layout_hosts_no_pool() -> None:
    cut = replace(A100, layouts=((20, 20, 40), (100,)), walls=())
    demand, known = question(6, 3, cut, seed=2)
    plan = Patterns()(demand, uniform_fleet(cut, 40), known, Plan())
    assert not plan.unserved_rows_per_s
    assert {part.share_pct for part in plan.partitions} <= {20, 40, 100}


def _loads(before: Plan, after: Plan) -> int:
    held = [{(p.id, s.model) for p in plan.partitions for s in p.slots} for plan in (before, after)]
    return len(held[1] - held[0])


def test_pools_stay_when_rates_move_but_not_at_any_price() -> None:
    demand, known = question(160, 110, A100, seed=5)
    there = uniform_fleet(A100, 200)
    before = Patterns()(demand, there, known, Plan())
    random = np.random.default_rng(5)
    by = (1.25 ** random.uniform(-1.0, 1.0, len(demand))).tolist()
    moved = [replace(d, rows_per_s=d.rows_per_s * f) for d, f in zip(demand, by, strict=True)]
    fresh = Patterns()(moved, there, known, Plan())
    after = Patterns()(moved, there, known, before)
    used = {name: len({p.gpu for p in plan.partitions}) for name, plan in
            (("fresh", fresh), ("after", after))}  # fmt: skip
    assert _loads(before, after) <= 4 * len(demand)
    assert _loads(before, after) < _loads(before, fresh) / 4
    assert used["after"] <= 1.04 * used["fresh"] + 1
    assert _loads(before, Patterns()(demand, there, known, before)) == 0

    narrow = uniform_fleet(A100, used["fresh"])
    assert not Patterns()(moved, narrow, known, before).unserved_rows_per_s, "room comes first"


def test_a_model_that_comes_is_all_that_moves() -> None:
    demand, known = question(81, 55, A100, seed=6)
    there = uniform_fleet(A100, 100)
    before = Patterns()(demand[:-1], there, known, Plan())
    after = Patterns()(demand, there, known, before)
    hosts = sum(s.model == demand[-1].model for p in after.partitions for s in p.slots)
    assert 0 < _loads(before, after) <= 2 * hosts + 8
