"""Plans tried in virtual time: who is served, who cannot be, and the same answer twice."""

from collections.abc import Mapping

import pytest

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Demand, Partition, Plan, Slot, connected_components
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.scenario import Scenario
from interlace.planning.trial import ModelTrial, TrialRuns, may_lose, try_plan
from interlace.policy.catalog import CATALOG

KIND = GPU_KINDS["v100"]
FLEET = uniform_fleet(KIND, 1)
SECONDS = 5.0


def _profile(model: str, fixed_ms: float = 2.0, row_ms: float = 1.0) -> Profile:
    points = {}
    for share in (50, 100):
        for batch in (1, 2, 4, 8):
            ms = (fixed_ms + row_ms * batch) * 100 / share
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "d", "v100", 10**6, 10**6, points)


PROFILES = {model: _profile(model) for model in ("a", "b")}


def _halves(rate_rps: float) -> Plan:
    return Plan(
        tuple(
            Partition(f"p-{model}", "gpu0", 50, (Slot(model, 8, rate_rps),), duty_ms=20.0)
            for model in ("a", "b")
        )
    )


def _tried(
    rate_rps: float,
    slo_ms: float = 100.0,
    cv: float = 1.0,
    seed: int = 0,
    system: str = "interlace",
) -> Mapping[str, float]:
    demand = tuple(Demand(model, rate_rps, slo_ms, 8, cv=cv) for model in ("a", "b"))
    return _attainment(_halves(rate_rps), demand, seed, system)


def _attainment(
    plan: Plan, demand: tuple[Demand, ...], seed: int = 0, system: str = "interlace"
) -> Mapping[str, float]:
    runs = TrialRuns(Scenario(demand, KIND, PROFILES), CATALOG[system])
    runs.play(plan, FLEET, demand, SECONDS, seed)
    return {model: one.attainment for model, one in runs.models().items()}


@pytest.mark.parametrize("system", ["interlace", "gpulet", "dstack", "temporal"])
def test_light_loads_are_served_whole(system: str) -> None:
    assert _tried(40.0, system=system) == {"a": 1.0, "b": 1.0}


def test_no_more_is_served_in_time_than_a_partition_can() -> None:
    """Half of the accelerator serves 8 rows in 20 ms: 400 requests/s of each model at most."""
    for served in _tried(800.0).values():
        assert 0.35 < served <= 0.5 * 1.05


def test_nobody_is_in_time_below_the_latency_of_one_row() -> None:
    """One row takes 6 ms in a partition of 50 %."""
    assert set(_tried(20.0, slo_ms=5.9).values()) == {0.0}


def test_bursts_harm() -> None:
    assert min(_tried(300.0, slo_ms=60.0, cv=4.0).values()) < min(
        _tried(300.0, slo_ms=60.0).values()
    )


def test_a_seed_tells_the_whole_story() -> None:
    crowded = _tried(380.0, slo_ms=60.0, seed=1)
    assert crowded == _tried(380.0, slo_ms=60.0, seed=1)
    assert crowded != _tried(380.0, slo_ms=60.0, seed=2)


def test_a_model_that_the_plan_leaves_out_is_not_served() -> None:
    demand = tuple(Demand(model, 20.0, 100.0, 8) for model in ("a", "b"))
    alone = Plan(_halves(20.0).partitions[:1], {"b": 20.0}, {"b": "left out"})
    found = _attainment(alone, demand)
    assert found["a"] == 1.0
    assert found["b"] == 0.0


@pytest.mark.parametrize(("sent", "in_time"), [(1, 1), (100, 100), (100, 97), (2000, 0), (7, 3)])
def test_the_interval_is_the_set_of_parts_that_a_test_does_not_reject(
    sent: int, in_time: int
) -> None:
    """Wilson's interval, inverted: at its ends the score test is at 1.96 standard errors."""
    one = ModelTrial(sent, in_time, 1.0)
    low, high = one.interval()
    assert 0.0 <= low <= one.attainment <= high <= 1.0
    for end in {low, high} - {0.0, 1.0}:
        error = (end * (1 - end) / sent) ** 0.5
        assert abs(one.attainment - end) == pytest.approx(1.96 * error)


def test_parts_share_no_model() -> None:
    parts = [
        Partition("a", "g0", 50, (Slot("x", 1, 1.0), Slot("y", 1, 1.0))),
        Partition("b", "g0", 50, (Slot("z", 1, 1.0),)),
        Partition("c", "g1", 50, (Slot("y", 1, 1.0),)),
        Partition("d", "g1", 50),
    ]
    names = [
        [p.id for p in one.partitions]
        for one in connected_components(Plan(tuple(parts)), by_gpu=False)
    ]
    assert names == [["a", "c"], ["b"]]
    whole = connected_components(Plan(tuple(parts)))
    assert [[p.id for p in one.partitions] for one in whole] == [["a", "b", "c"]]


def test_parts_are_tried_as_the_whole_is() -> None:
    """Partitions that share no model do not wait for each other."""
    demand = tuple(Demand(model, 380.0, 60.0, 8) for model in ("a", "b"))
    together = _attainment(_halves(380.0), demand)
    apart = try_plan(_halves(380.0), FLEET, Scenario(demand, KIND, PROFILES), CATALOG["interlace"])
    assert apart.parts == apart.parts_tried == 2
    for model, one in apart.models.items():
        low, high = one.interval(4.0)
        assert low - 0.02 <= together[model] <= high + 0.02


def test_of_many_parts_a_sample_is_tried() -> None:
    names = [f"m{i}" for i in range(8)]
    profiles = {name: _profile(name) for name in names}
    fleet = uniform_fleet(KIND, 8)
    parts = tuple(
        Partition(f"p{i}", f"gpu{i}", 100, (Slot(name, 8, 50.0),)) for i, name in enumerate(names)
    )
    demand = tuple(Demand(name, 50.0, 100.0, 8) for name in names)
    scenario = Scenario(demand, KIND, profiles)
    found = try_plan(Plan(parts), fleet, scenario, CATALOG["interlace"], requests=1_500)
    assert (found.parts, found.parts_tried, len(found.models)) == (8, 3, 3)
    assert "a sample of 3 of the plan's 8 independent parts" in found.sentence()
    assert found == try_plan(Plan(parts), fleet, scenario, CATALOG["interlace"], requests=1_500)


def test_a_trial_ends_when_it_has_shown_enough() -> None:
    demand = tuple(Demand(model, 2000.0, 60.0, 8) for model in ("a", "b"))
    scenario = Scenario(demand, KIND, PROFILES)
    found = try_plan(_halves(2000.0), FLEET, scenario, CATALOG["interlace"], requests=60_000)
    assert set(found.broken) == {"a", "b"}
    assert found.requests < 30_000


def test_a_trial_ends_once_a_promise_cannot_come_out_as_kept() -> None:
    """More is asked of a plan by more standard errors, so what is in doubt ends sooner."""
    demand = tuple(Demand(model, 390.0, 60.0, 8) for model in ("a", "b"))
    scenario = Scenario(demand, KIND, PROFILES)
    lost = []
    for errors in (-3.0, 0.0, 1.5):
        found = try_plan(_halves(390.0), FLEET, scenario, CATALOG["interlace"], errors=errors)
        assert set(found.short) == {"a", "b"}
        for model in found.short:
            one = found.models[model]
            assert one.sent - one.in_time > may_lose(one.sent, 0.99, errors)
        lost.append(found.requests)
    assert lost == sorted(lost, reverse=True)


@pytest.mark.parametrize(("sent", "lost"), [(1000, 3), (1000, 10), (5000, 41), (300, 1)])
def test_what_may_be_lost_is_what_the_interval_says(sent: int, lost: int) -> None:
    for errors in (0.5, 1.5, 2.5):
        kept = ModelTrial(sent, sent - lost, 1.0).interval(errors)[0] >= 0.99
        assert kept == (lost <= may_lose(sent, 0.99, errors))


def test_more_than_is_asked_for_breaks_what_is_just_kept() -> None:
    demand = tuple(Demand(model, 360.0, 60.0, 8) for model in ("a", "b"))
    scenario = Scenario(demand, KIND, PROFILES)
    as_asked, more = (
        try_plan(_halves(360.0), FLEET, scenario, CATALOG["interlace"], load=load)
        for load in (1.0, 1.2)
    )
    assert not as_asked.broken
    assert set(more.broken) == {"a", "b"}
    assert "random requests:" in as_asked.sentence()
    assert "random requests, 20% more than asked:" in more.sentence()
