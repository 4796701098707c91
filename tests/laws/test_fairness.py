"""That the bound of ``policy.fairness`` is close, and that by deadline alone it is broken."""

from __future__ import annotations

import pytest

from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.engine.service_tags import ServiceTags
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma
from interlace.testing.fairness_laws import measured
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


@pytest.mark.sources
def test_by_deadline_alone_the_gap_is_far_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = measured(_two(20.0, 200.0), OURS)
    monkeypatch.setattr(ServiceTags, "behind_ms", lambda tags, ahead: {})
    alone = measured(_two(20.0, 200.0), OURS)
    assert fair.pairs > 300
    assert alone.pairs > 300
    assert 0.5 < fair.worst < 1.0
    assert alone.worst > 3.0
