"""Idle shares given to partitions: legal, larger, nothing else changed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.lending import widened
from interlace.policy.catalog import resolve
from tests.builders import line_profile

PROFILES = {m: line_profile(m) for m in "ab"}
GPU = Gpu("g0", "test", 10, 10**9, (50, 60, 70, 80, 90, 100))


def _plan(*parts: tuple[int, float]) -> Plan:
    slots = [(share, Slot("ab"[i % 2], 4, rate)) for i, (share, rate) in enumerate(parts)]
    return Plan(tuple(Partition(f"p{i}", "g0", s, (slot,)) for i, (s, slot) in enumerate(slots)))


def test_the_busiest_grows_first() -> None:
    grown = widened(_plan((50, 300.0)), Fleet((GPU,)), PROFILES)
    assert [p.share_pct for p in grown.partitions] == [100]
    two = widened(
        Plan((*_plan((50, 1.0)).partitions,)), Fleet((replace(GPU, shares_pct=(50,)),)), PROFILES
    )
    assert [p.share_pct for p in two.partitions] == [50]


@given(st.lists(st.sampled_from([5, 10, 25, 40]), min_size=1, max_size=4))
def test_what_grows_stays_legal(shares: list[int]) -> None:
    kind = uniform_fleet(GPU_KINDS["v100"], 1)
    if sum(shares) > 100:
        return
    profiles = {m: _everywhere(m) for m in "ab"}
    plan = Plan(
        tuple(
            Partition(f"p{i}", "gpu0", s, (Slot("ab"[i % 2], 2, 10.0 * i),))
            for i, s in enumerate(shares)
        )
    )
    grown = widened(plan, kind, profiles)
    assert kind.gpus[0].legal([p.share_pct for p in grown.partitions])
    assert sum(p.share_pct for p in grown.partitions) == 100
    for before, after in zip(plan.partitions, grown.partitions, strict=True):
        assert after.share_pct >= before.share_pct
        assert replace(after, share_pct=before.share_pct) == before


def test_bursts_that_cannot_be_held_leave_no_accelerator_idle() -> None:
    """A demand too bursty for its SLO still gets all of the fleet that is there."""
    profiles = {m: _everywhere(m) for m in "ab"}
    there = uniform_fleet(GPU_KINDS["v100"], 2)
    demand = [Demand(m, 300.0, 40.0, cv=4.0) for m in profiles]
    plan = resolve("interlace").planner(demand, there, profiles, Plan())
    for gpu in there.gpus:
        assert sum(p.share_pct for p in plan.partitions if p.gpu == gpu.id) == 100


def _everywhere(model: str) -> Profile:
    """A profile at every share of a V100, twice the share 2^0.7 times as fast."""
    points: dict[tuple[int, int], LatencyPoint] = {}
    for (batch, at), point in line_profile(model).points.items():
        for share in GPU_KINDS["v100"].shares_pct if at == 100 else ():
            ms = point.median_ms * (100 / share) ** 0.7
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return replace(line_profile(model), points=points, gpu_kind="v100")
