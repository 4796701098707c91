"""What our planner of accelerators that are there takes where a cut falls short of the rates."""

from dataclasses import replace

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
