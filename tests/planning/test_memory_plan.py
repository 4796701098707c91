"""More models than memory: what stays, what the others wait for, and what cannot be."""

from __future__ import annotations

import pytest

from interlace.core.plan import Demand
from interlace.core.profile import LayerProfile, Profile
from interlace.core.user_errors import UserError
from interlace.planning.memory_plan import MemoryPlan, memory_plan

#: 600 MB over a link of 10 MB/ms: 60 ms, of which 30 ms of execution hide nearly half.
LAYERS = tuple(LayerProfile(f"l{n}", 10**7, 1.0, 0.5, 99.0, "Linear") for n in range(60))


def profile(name: str, layers: tuple[LayerProfile, ...] = LAYERS) -> Profile:
    return Profile(
        name, "d", "v100", sum(one.weights_bytes for one in layers), 0, {}, layers=layers
    )


def planned(rates: dict[str, float], memory_bytes: int, slo_ms: float = 50.0) -> MemoryPlan:
    demand = [Demand(name, rate, slo_ms) for name, rate in rates.items()]
    profiles = {name: profile(name) for name in rates}
    return memory_plan(demand, profiles, {name: name for name in rates}, memory_bytes)


def test_the_popular_model_stays_and_the_rest_is_told() -> None:
    found = planned({"busy": 9.0, "idle": 1.0}, 10**9)
    busy, idle = found.models
    assert found.room_bytes == 6 * 10**8
    assert busy.kept.kept_bytes > 2 * 10**8 > idle.kept.kept_bytes
    assert busy.warm_ms == pytest.approx(30.0) and idle.kept.end_ms > busy.kept.end_ms
    assert found.residency.kept_bytes <= 4 * 10**8
    assert found.more_ms_per_s > 0.0
    text = "\n".join(found.sentences())
    assert "1000 MB" in text and "600 for a model that is being loaded" in text
    # 61 ms cold, a tenth of which must stay for 50 ms, in each of two models.
    assert f"no residency keeps these SLOs with less than {2 * busy.least_bytes / 1e6:.0f}" in text
    assert 1e8 <= busy.least_bytes <= 1.6e8


def test_with_memory_for_all_nothing_is_cold() -> None:
    found = planned({"a": 1.0, "b": 0.0}, 3 * 10**9)
    assert found.models[0].resident
    both = planned({"a": 0.0, "b": 0.0}, 3 * 10**9)
    assert [one.rate_rps for one in both.models] == [1.0, 1.0]
    assert all(one.resident for one in both.models)
    assert both.more_ms_per_s == pytest.approx(0.0)


def test_what_cannot_be_is_said_with_figures() -> None:
    with pytest.raises(UserError, match="a copies 600 MB to run, and the memory is 500 MB"):
        planned({"a": 1.0}, 5 * 10**8)
    assert "too slow for the SLO: a" in planned({"a": 1.0}, 10**9, slo_ms=9.0).sentences()[-1]
    assert planned({"a": 1.0}, 10**9, slo_ms=99.0).sentences()[-1].startswith("every SLO")
    with pytest.raises(UserError, match="no layers are known of a; first: interlace profile"):
        memory_plan([Demand("a", 1.0, 9.0)], {"a": profile("a", ())}, {"a": "a"}, 10**9)
