"""Fleets cut into pools: what every proposal is, whatever is asked."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.kept import gpulet_scenario, held, random_scenario
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulated_plan import PlanTrials
from interlace.policy.catalog import CATALOG

OURS = CATALOG["interlace"]


def _proposed(known: Scenario, gpus: int, rates: float = 1.0) -> Plan | None:
    demand = [replace(one, rows_per_s=one.rows_per_s * rates) for one in known.demand]
    fleet = uniform_fleet(known.gpu, gpus)
    pools = FluidPools(demand, fleet, known.busy_profiles, Plan())
    return pools.plan({one.model: 1.0 for one in demand})


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_proposal_is_a_plan_for_all_rates(seed: int, gpus: int) -> None:
    known = random_scenario(seed)
    plan = _proposed(known, gpus)
    if plan is None:
        return
    assert _served(known, plan, gpus) == pytest.approx(
        {one.model: one.rows_per_s for one in known.demand}
    )


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([0.5, 2.0, 8.0]))
def test_a_cut_for_most_of_the_rates_says_what_it_leaves(
    seed: int, gpus: int, rates: float
) -> None:
    known = random_scenario(seed)
    demand = [replace(one, rows_per_s=one.rows_per_s * rates) for one in known.demand]
    plan = FluidPools(demand, uniform_fleet(known.gpu, gpus), known.busy_profiles, Plan())
    found = plan.short_plan()
    assert found is not None and found.partitions
    served = _served(known, found, gpus)
    for one in demand:
        left = found.unserved_rows_per_s.get(one.model, 0.0)
        assert left >= 0.0 and served[one.model] + left == pytest.approx(one.rows_per_s)
    assert found.reasons.keys() == found.unserved_rows_per_s.keys()
    if _proposed(known, gpus, rates) is not None:  # there is time for all; the search has a gap
        assert fmean(served[one.model] / one.rows_per_s for one in demand) > 0.9


def _served(known: Scenario, plan: Plan, gpus: int) -> dict[str, float]:
    """Planned rows/s by model, after each partition was found in time and in memory."""
    asked = {one.model: one for one in known.demand}
    served = dict.fromkeys(asked, 0.0)
    for part in plan.partitions:
        for slot in part.slots:
            run_ms = surface(known.profiles[slot.model]).latency_ms(slot.batch, part.share_pct)
            assert run_ms <= asked[slot.model].slo_ms
            served[slot.model] += slot.rows_per_s
    for gpu in uniform_fleet(known.gpu, gpus).gpus:
        here = [part for part in plan.partitions if part.gpu == gpu.id]
        assert gpu.legal([part.share_pct for part in here])
        hosted = [(part.share_pct, [slot.model for slot in part.slots]) for part in here]
        assert holds(gpu, hosted, known.profiles)
    return served


@pytest.mark.parametrize("gpus", [1, 2])
def test_no_more_is_proposed_than_there_is_time_for(gpus: int) -> None:
    known = gpulet_scenario(0, 4)
    parts = [part for part in (0.01, 0.1, 0.4, 1.0, 100.0) if _proposed(known, gpus, part)]
    assert parts and 100.0 not in parts
    assert parts == [0.01, 0.1, 0.4, 1.0][: len(parts)]
    assert all(_proposed(known, 2 * gpus, part) for part in parts)


@pytest.mark.parametrize("seed", [0, 2])
def test_the_engine_keeps_proposals(seed: int) -> None:
    """Two scenarios that duty cycles, and patterns with all their queues, are too careful for."""
    known = gpulet_scenario(seed, 4)
    plan, fleet = _proposed(known, 4), uniform_fleet(known.gpu, 4)
    assert plan is not None
    told = PlanTrials(known, OURS).spread(plan, fleet)
    assert held(told, fleet, known, 2, 4.0, 0.001)[0]


def test_models_that_memory_does_not_hold_everywhere_are_in_some_hosts_of_their_pool() -> None:
    known = read_scenario(Path(__file__).parents[2] / "examples/planning/nine.toml")
    plan = _proposed(known, 2)
    assert plan is not None
    hosts: dict[str, int] = {}
    for slot in (slot for part in plan.partitions for slot in part.slots):
        hosts[slot.model] = hosts.get(slot.model, 0) + 1
    assert hosts.keys() == {one.model for one in known.demand}
    assert all(0 < count < len(plan.partitions) for count in hosts.values())
    for gpu in uniform_fleet(known.gpu, 2).gpus:
        here = [part for part in plan.partitions if part.gpu == gpu.id]
        hosted = [(part.share_pct, [slot.model for slot in part.slots]) for part in here]
        assert holds(gpu, hosted, known.profiles)
        wider = [(share, [*models, "ssd"]) for share, models in hosted]
        assert not holds(gpu, wider, known.profiles)


def test_a_share_that_no_layout_offers_makes_no_pool() -> None:
    """Profiles know 80 %; a cut of this accelerator never has such a partition."""
    known = random_scenario(0)
    cut = replace(known.gpu, layouts=((20, 20, 40), (20, 60), (40, 40), (100,)))
    demand = [replace(one, rows_per_s=one.rows_per_s / 100) for one in known.demand]
    plan = FluidPools(demand, uniform_fleet(cut, 4), known.busy_profiles, Plan()).plan(
        {one.model: 1.0 for one in demand}
    )
    assert plan is not None
    assert {part.share_pct for part in plan.partitions} <= {20, 40, 60, 100}


def test_a_rate_of_next_to_nothing_overflows_nothing() -> None:
    known = random_scenario(0)
    demand = [replace(known.demand[0], rows_per_s=5e-324), *known.demand[1:]]
    pools = FluidPools(demand, uniform_fleet(known.gpu, 4), known.busy_profiles, Plan())
    plan = pools.plan({one.model: 1.0 for one in demand})
    assert plan is not None
    assert demand[0].model in {slot.model for part in plan.partitions for slot in part.slots}
