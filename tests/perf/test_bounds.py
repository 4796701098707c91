"""Lower bounds: their order, their prices, and published figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.kinds import KINDS
from interlace.core.plan import Demand
from interlace.core.profile import Point, Profile
from interlace.perf.bounds import area, configuration, lower_bound, memory

GPUS = [KINDS["a100-mig"], KINDS["v100"]]
SHARES = {"a100-mig": (14, 28, 42, 57, 100), "v100": (20, 40, 60, 80, 100)}


def _profile(model: str, fixed_ms: float, row_ms: float, knee: int, kind: str) -> Profile:
    points = {}
    for share in SHARES[kind]:
        for batch in (1, 4, 16, 64):
            ms = (fixed_ms + row_ms * batch) * max(1.0, knee / share)
            points[batch, share] = Point(ms, ms, ms, 1)
    return Profile(model, "d", kind, 10**9, 10**8, points)


@st.composite
def questions(draw: st.DrawFn, kind: str) -> tuple[list[Demand], dict[str, Profile]]:
    count = draw(st.integers(1, 5))
    profiles = {
        f"m{i}": _profile(
            f"m{i}",
            draw(st.floats(0.5, 10)),
            draw(st.floats(0.05, 2)),
            draw(st.integers(10, 100)),
            kind,
        )
        for i in range(count)
    }
    demand = [
        Demand(name, draw(st.floats(1, 2000)), draw(st.floats(2, 400)), 64) for name in profiles
    ]
    return demand, profiles


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.kind for gpu in GPUS])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_layouts_can_only_cost_more_than_area(gpu: object, data: st.DataObject) -> None:
    kind = KINDS[gpu.kind]  # type: ignore[attr-defined]
    demand, profiles = data.draw(questions(kind.kind))
    by_area, by_layout = area(demand, kind, profiles), configuration(demand, kind, profiles)
    assert by_layout.accelerators >= by_area.accelerators * (1 - 1e-6)
    twice = [replace(one, rate_rps=2 * one.rate_rps) for one in demand]
    assert area(twice, kind, profiles).accelerators == pytest.approx(2 * by_area.accelerators)
    assert configuration(twice, kind, profiles).accelerators == pytest.approx(
        2 * by_layout.accelerators, rel=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prices_are_what_one_more_request_costs(data: st.DataObject) -> None:
    gpu = KINDS["a100-mig"]
    demand, profiles = data.draw(questions(gpu.kind))
    before = configuration(demand, gpu, profiles)
    for index, one in enumerate(demand):
        more = list(demand)
        more[index] = replace(one, rate_rps=one.rate_rps + 1e-3)
        rise = configuration(more, gpu, profiles).accelerators - before.accelerators
        price = before.price.get(one.model, 0.0)
        assert rise >= price * 1e-3 - 1e-8, "a dual price is a subgradient: convex costs"


def test_memory_counts_every_model_once() -> None:
    gpu = KINDS["v100"]
    profiles = {f"m{i}": _profile(f"m{i}", 1, 0.1, 50, "v100") for i in range(30)}
    demand = [Demand(name, 1.0, 500.0) for name in profiles]
    assert memory(demand, gpu, profiles).accelerators == pytest.approx(30 * 1.1e9 / 16e9)
    assert lower_bound(demand, gpu, profiles).gpus == 3


def test_what_no_share_serves_is_left_out() -> None:
    gpu = KINDS["v100"]
    profiles = {"m": _profile("m", 50.0, 1.0, 100, "v100")}
    assert lower_bound([Demand("m", 10.0, 5.0)], gpu, profiles).gpus == 0
    nothing = [Demand("m", float("nan"), 5.0), Demand("unknown", 1.0, 5.0), Demand("m", 0.0, 500.0)]
    assert lower_bound(nothing, gpu, profiles).gpus == 0


def test_published_a100_scenarios_have_their_known_floors() -> None:
    """ParvaGPU's scenarios S1 to S3: area 0.73, 1.52, 2.96 GPUs at 99 % of the rates."""
    data = Path(__file__).parents[2].parent / "shared" / "data" / "a100-mig"
    if not data.exists():
        pytest.skip(f"public data is not at {data}")
    from bench.planning.a100_profiles import scenarios

    floors = [
        configuration(one.demand, KINDS["a100-mig"], one.profiles).accelerators
        for one in scenarios(data)
    ]
    assert floors == pytest.approx([0.73, 1.52, 2.96], abs=0.006)
