"""The plan of D-STACK: knees, best batches, sessions, turns."""

from dataclasses import replace

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.planners.dstack import Dstack

SHARES = (10, 20, 30, 40, 50, 60, 100)
V100 = Gpu("g", "v100", 80, 1 << 34, SHARES)
#: Table 6: knee %, SLO ms, runtime ms of a batch of 16.
TABLE_6 = {"mobilenet": (20, 25, 10.0), "alexnet": (30, 25, 8.0), "resnet50": (40, 60, 28.0)}


def profile(model: str, knee: int, run_ms: float) -> Profile:
    points = {}
    for share in SHARES:
        for batch in (1, 2, 4, 8, 16):
            ms = run_ms * (0.5 + batch / 32) * max(1.0, knee / share)
            points[batch, share] = LatencyPoint(ms, ms, ms, 9)
    return Profile(model, "d", "v100", 1 << 20, 1 << 20, points)


PROFILES = {m: profile(m, knee, ms) for m, (knee, _, ms) in TABLE_6.items()}


def demand(rows_per_s: float) -> list[Demand]:
    return [Demand(m, rows_per_s, slo, 16) for m, (_, slo, _) in TABLE_6.items()]


def test_models_stand_at_their_knee_and_a_step_more() -> None:
    plan = Dstack()(demand(200.0), Fleet((V100, replace(V100, id="h"))), PROFILES, Plan())
    shares = {slot.model: p.share_pct for p in plan.partitions for slot in p.slots}
    assert shares == {"mobilenet": 40, "alexnet": 40, "resnet50": 50}
    assert not plan.unserved_rows_per_s


def test_the_session_is_the_longest_slo() -> None:
    assert Dstack()(demand(10.0), Fleet((V100,)), PROFILES, Plan()).session_ms == 60


def test_models_of_one_share_take_turns() -> None:
    plan = Dstack()(demand(100.0), Fleet((V100,)), PROFILES, Plan())
    assert max(len(p.slots) for p in plan.partitions) > 1
    assert not plan.unserved_rows_per_s


def test_more_than_there_is_room_for_is_said() -> None:
    plan = Dstack()(demand(1e5), Fleet((V100,)), PROFILES, Plan())
    served = sum(slot.rows_per_s for p in plan.partitions for slot in p.slots)
    assert served + sum(plan.unserved_rows_per_s.values()) == pytest.approx(3e5)
    assert set(plan.reasons) == set(plan.unserved_rows_per_s)


def test_an_slo_below_twice_the_latency_is_explained() -> None:
    tight = [Demand("resnet50", 5.0, 20.0, 16)]
    plan = Dstack()(tight, Fleet((V100,)), PROFILES, Plan())
    assert plan.unserved_rows_per_s == {"resnet50": 5.0}
    assert "raise the SLO" in plan.reasons["resnet50"]


def test_mig_layouts_and_walls_are_kept() -> None:
    mig = Gpu("m", "mig", 7, 7 << 30, (14, 28, 42, 100), layouts=((14, 14, 28, 42), (100,)),
              walls=((14, 1 << 19), (28, 1 << 30), (42, 1 << 30), (100, 7 << 30)))  # fmt: skip
    plan = Dstack()(demand(400.0), Fleet((mig,)), PROFILES, Plan())
    shares = [p.share_pct for p in plan.partitions]
    assert mig.legal(shares) and 14 not in shares  # a slice of 0.5 MiB holds none of them
