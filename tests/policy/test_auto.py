"""What our planner of accelerators that are there takes where a cut falls short of the rates."""

from dataclasses import replace
from statistics import fmean

import pytest

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.report import report
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.testing.worlds import scaled_profile

OURS = resolve("interlace")


def _forty() -> tuple[list[Demand], dict[str, Profile]]:
    """Forty models: a cut has little time for them, one queue for several hosts has six times."""
    known, demand = {}, []
    for at in range(40):
        profile = scaled_profile(f"m{at:02}", 2.0 + at % 3, 0.4, 40, 10)
        known[profile.model] = replace(profile, weights_bytes=2 << 30, activation_bytes=1 << 28)
        rate = (5.0, 20.0, 60.0)[at % 3]
        demand.append(Demand(profile.model, rate, 20.0 + 5 * (at % 4), 16))
    return demand, known


def test_pools_replace_a_cut_that_falls_short_and_then_serve_every_model() -> None:
    demand, known = _forty()
    fleet = uniform_fleet(GPU_KINDS["a100"], 2)
    plan = OURS.planner(demand, fleet, known, Plan())
    assert "ignoring queueing" in plan.notes[0] and not plan.unserved_rows_per_s
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, d.cv) for d in demand}, 3.0, 1)
    record = simulate(Simulation(OURS, fleet, tuple(demand), known, known, arrivals, plan))
    assert report(record).worst_attainment > 0.99
    # Queues may take what pools have time for: no more is promised than is known to be kept.
    assert plan.headroom is not None and plan.headroom < 1.0


def test_a_model_that_needs_a_whole_accelerator_holds_back_no_other() -> None:
    """Slices cannot overlap: a cut for all rates has none of the tight model's in time, and the
    halvings of its factor would end at a twentieth of everybody's rates."""
    known, demand = {}, []
    for at in range(12):
        profile = scaled_profile(f"m{at:02}", 1.0 + at % 3, 0.3, 20, 10)
        known[profile.model] = profile
        demand.append(Demand(profile.model, 60.0, 12.0 + 4 * (at % 4), 16))
    known["tight"] = scaled_profile("tight", 8.0, 2.0, 100, 10)
    demand.append(Demand("tight", 25.0, 14.0, 16))
    fleet = uniform_fleet(GPU_KINDS["a100-mig"], 1)
    plan = OURS.planner(demand, fleet, known, Plan())
    hosted = {slot.model for part in plan.partitions for slot in part.slots}
    assert hosted - {"tight"} == known.keys() - {"tight"}
    assert plan.unserved_rows_per_s.keys() == {"tight"}
    arrivals = merge_arrivals({d.model: Gamma(d.rows_per_s, d.cv) for d in demand}, 3.0, 1)
    record = simulate(Simulation(OURS, fleet, tuple(demand), known, known, arrivals, plan))
    models = report(record).models
    others = [one.attainment for name, one in models.items() if name != "tight"]
    assert min(others) > 0.55 and fmean(others) > 0.8


@pytest.mark.parametrize("kind", ["2080ti", "a100-mig"])
def test_memory_for_some_models_goes_to_those_that_are_asked_for_most(kind: str) -> None:
    known, demand = {}, []
    gpu = GPU_KINDS[kind]
    for at in range(12):
        profile = scaled_profile(f"m{at:02}", 2.0, 0.4, 40, 10)
        known[profile.model] = replace(
            profile, weights_bytes=gpu.memory_bytes // 8, activation_bytes=1 << 20
        )
        demand.append(Demand(profile.model, 0.001 * 2.0**at, 200.0, 16))
    demand.append(Demand("vast", 1.0, 200.0, 16))
    known["vast"] = replace(known["m00"], model="vast", weights_bytes=2 * gpu.memory_bytes)
    plan = OURS.planner(demand, uniform_fleet(gpu, 1), known, Plan())
    left = plan.unserved_rows_per_s.keys()
    assert "it needs" in plan.reasons["vast"]
    assert left - {"vast"} == {f"m{at:02}" for at in range(12 - 7)}
    assert all("asked for more" in plan.reasons[model] for model in left - {"vast"})
