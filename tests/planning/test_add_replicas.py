"""Plans of many models: hosts are added where promises break, and the rest stays as it is."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile, Profiles
from interlace.planning import plan_search
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.planning.trial import TrialRuns
from interlace.policy.base import System
from interlace.policy.catalog import CATALOG

GPU = GPU_KINDS["a100"]
OURS = CATALOG["interlace"]
MODELS = 30


@pytest.fixture(autouse=True)
def _many(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many models are not cut into pools."""
    monkeypatch.setattr(plan_search, "_MOST_MODELS", MODELS - 1)


def _scenario(limit: int = 64) -> Scenario:
    random = np.random.default_rng(3)
    profiles, demand = {}, []
    for index in range(MODELS):
        name, row_ms = f"m{index}", float(random.uniform(0.3, 1.0))
        points = {}
        for share in (20, 40, 60, 80, 100):
            for batch in (1, 4, 16):
                ms = (3.0 + row_ms * batch) * max(1.0, 50.0 / share)
                points[batch, share] = LatencyPoint(ms, ms, ms, 1)
        profiles[name] = Profile(name, "d", GPU.kind, 10**6, 10**6, points)
        demand.append(Demand(name, float(random.uniform(20.0, 90.0)), 60.0 + index, 16))
    return Scenario(tuple(demand), GPU, profiles, limit=limit)


def _careless(part: float) -> System:
    """A system whose packer believes that so much of the rates is all of them."""

    def packer(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        less = [replace(one, rows_per_s=part * one.rows_per_s) for one in demand]
        return OURS.packer(less, fleet, profiles, current)

    return replace(OURS, packer=packer)


def test_hosts_are_added_until_every_promise_is_kept() -> None:
    scenario, system = _scenario(), _careless(0.6)
    packed = search_plan(scenario, replace(system, tried=False))
    assert packed.trial.broken, "else there is nothing to mend"
    found = search_plan(scenario, system)
    assert found.kept
    before = {part.id: part.share_pct for part in packed.plan.partitions}
    after = {part.id: part.share_pct for part in found.plan.partitions}
    assert before.items() < after.items()
    runs = TrialRuns(scenario, OURS)
    runs.play(found.plan, found.fleet, scenario.demand, 10.0, 500)
    for model, one in runs.models().items():
        assert one.interval(4.0)[1] >= 0.99, model


def test_where_accelerators_are_short_what_is_broken_is_told() -> None:
    scenario, system = _scenario(), _careless(0.3)
    packed = search_plan(scenario, replace(system, tried=False))
    full = search_plan(replace(scenario, limit=packed.gpus), system)
    assert full.trial.broken
    assert not full.kept
