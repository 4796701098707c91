"""Apps of several models in virtual time: order of stages, deadlines, and what became of each."""

from collections import Counter
from collections.abc import Mapping
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.papers.apps import recog, traffic
from interlace.apps.graph import Stage, staged
from interlace.core.plan import Demand
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.sim.apps import SimulatedApp
from interlace.sim.arrivals import Steady, Workload, merge_arrivals, poisson
from interlace.sim.record import AppServed, RunRecord
from interlace.sim.report import app_figures
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import line_profile, machine


def _app(slo_ms: float, **stages: Stage) -> SimulatedApp:
    return SimulatedApp(staged("app", stages), slo_ms)


def _played(
    one: SimulatedApp,
    workload: Workload,
    budgets_ms: Mapping[str, float] | None = None,
    row_ms: Mapping[str, float] | None = None,
    seconds: float = 5.0,
    seed: int = 1,
    name: str = "interlace",
    truth_ms: Mapping[str, float] | None = None,
    **beside: Workload,
) -> RunRecord:
    """One app, planned for 20 requests/s; models have an equal part of its SLO, if not said."""
    names = [*one.app.members, *beside]
    even_ms = one.slo_ms / len(one.app.steps)
    demand = [Demand(model, 20.0, (budgets_ms or {}).get(model, even_ms), 8) for model in names]
    profiles = {name: line_profile(name, row_ms=(row_ms or {}).get(name, 1.0)) for name in names}
    slower = {model: line_profile(model, row_ms=ms) for model, ms in (truth_ms or {}).items()}
    return simulate(
        Simulation(
            resolve(name),
            machine(),
            tuple(demand),
            profiles,
            profiles | slower,
            merge_arrivals({one.app.name: workload, **beside}, seconds, seed),
            warm_ms=1_000.0,
            epoch_ms=float("inf"),
            apps={one.app.name: one},
        )
    )


@st.composite
def apps(draw: st.DrawFn) -> SimulatedApp:
    stages: dict[str, Stage] = {}
    for index in range(draw(st.integers(1, 6))):
        parents = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        after = tuple(f"s{parent}" for parent in sorted(parents))
        rows = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 11.5]))
        stages[f"s{index}"] = Stage(f"m{index % 3}", after, rows)
    return _app(draw(st.floats(50.0, 500.0)), **stages)


@settings(max_examples=25, deadline=None)
@given(apps(), st.integers(0, 5))
def test_each_arrival_of_an_app_has_one_result(app: SimulatedApp, seed: int) -> None:
    workload = poisson(15.0)
    record = _played(app, workload, seed=seed, seconds=2.0)
    trace = merge_arrivals({"app": workload}, 2.0, seed)
    assert sorted(one.arrived_ms - record.from_ms for one in record.apps) == pytest.approx(
        trace.times_ms.tolist()
    )
    for one in record.apps:
        assert one.arrived_ms <= one.answered_ms
        assert one.answered_ms <= one.deadline_ms or one.outcome is not Outcome.OK
    assert sum(one.rows for one in record.apps) == sum(one.rows for one in record.served)


def test_stages_follow_each_other_and_the_next_has_what_is_left() -> None:
    record = _played(traffic(slo_ms=100.0), Steady(10.0))
    assert [(one.rows, one.outcome) for one in record.apps] == [(3, Outcome.OK)] * 50
    ends = [one.answered_ms for one in record.served if one.model == "ssd"]
    for model in ("goo", "vgg"):
        served = [one for one in record.served if one.model == model]
        assert [one.arrived_ms for one in served] == ends
        assert [one.deadline_ms for one in served] == [one.deadline_ms for one in record.apps]
    learned = [one for one in record.served if one.model == "ssd"][10]
    last_ms = max(one.answered_ms - one.arrived_ms for one in record.served if one.model != "ssd")
    assert learned.deadline_ms - learned.arrived_ms == pytest.approx(100.0 - 2 * last_ms, abs=1.0)


def test_a_join_waits_for_all_rows_of_all() -> None:
    app = _app(200.0, a=Stage("m0", rows=3.0), b=Stage("m1"), c=Stage("m2", ("a", "b"), 2.0))
    record = _played(app, Steady(5.0), row_ms={"m1": 30.0})
    assert {one.rows for one in record.apps} == {5}  # c runs once
    slow = [one.answered_ms for one in record.served if one.model == "m1"]
    assert [one.arrived_ms for one in record.served if one.model == "m2"] == slow


def test_more_rows_than_a_batch_are_cut_and_none_are_skipped() -> None:
    app = _app(500.0, a=Stage("m0"), b=Stage("m1", ("a",), 19.0), c=Stage("m2", ("a",), 0.0))
    record = _played(app, Steady(5.0))
    assert {(one.rows, one.outcome) for one in record.apps} == {(20, Outcome.OK)}
    assert {one.rows for one in record.served if one.model == "m1"} == {8, 3}
    assert not [one for one in record.served if one.model == "m2"]


def test_a_failed_stage_ends_the_app() -> None:
    app = _app(60.0, a=Stage("a"), b=Stage("b", ("a",)))
    record = _played(app, Steady(10.0), row_ms={"a": 100.0})
    assert not [one for one in record.served if one.model == "b"]
    assert {one.outcome for one in record.apps} == {Outcome.REFUSED}


@pytest.mark.parametrize(("slow", "outcome"), [("a", Outcome.EXPIRED), ("b", Outcome.LATE)])
def test_slower_than_believed(slow: str, outcome: Outcome) -> None:
    """After a first stage that took all the time nothing is begun; a last one is just late."""
    app = _app(40.0, a=Stage("a"), b=Stage("b", ("a",)))
    record = _played(app, Steady(5.0), None, {}, 0.3, 0, "triton", {slow: 90.0})
    assert [one.outcome for one in record.apps] == [outcome]
    assert [one.rows for one in record.apps] == [1 if slow == "a" else 2]


def test_a_picture_holds_the_same_whoever_looks_at_it() -> None:
    counts = []
    for name in ("interlace", "gpulet"):
        record = _played(recog(slo_ms=200.0, people=2.5, vehicles=0.3), poisson(10.0), name=name)
        assert {one.outcome for one in record.apps} == {Outcome.OK}
        counts.append([one.rows for one in sorted(record.apps)])
    assert counts[0] == counts[1]
    assert set(counts[0]) == {3, 4, 5}  # MobileNet, two or three people, perhaps a vehicle


def test_in_overload_few_apps_are_given_up_after_a_stage_has_run() -> None:
    app = _app(150.0, a=Stage("a"), b=Stage("b", ("a",)), c=Stage("c", ("b",)))
    record = _played(app, poisson(600.0), row_ms=dict.fromkeys("abc", 3.0))
    found = Counter(one.outcome for one in record.apps)
    assert found[Outcome.REFUSED] > found[Outcome.OK] > 500, "it is overload"
    lost = sum(one.outcome is Outcome.EXPIRED and one.rows > 1 for one in record.apps)
    assert lost < 0.25 * found[Outcome.OK]
    assert {one.model for one in record.served if one.outcome is Outcome.REFUSED} == {"a"}


def test_plain_requests_go_beside_apps_and_equal_scenarios_give_equal_records() -> None:
    first, second = (
        _played(traffic(slo_ms=100.0), Steady(10.0), {"res": 50.0}, res=Steady(20.0))
        for _ in range(2)
    )
    assert first == second
    assert len(first.apps) == 50
    assert sum(one.model == "res" for one in first.served) == 100


def test_figures_of_apps_count_whole_answers() -> None:
    served = [
        AppServed("a", 0.0, 100.0, 50.0, Outcome.OK, 3),
        AppServed("a", 10.0, 110.0, 160.0, Outcome.LATE, 3),
        AppServed("a", 20.0, 120.0, 25.0, Outcome.REFUSED, 1),
        AppServed("b", 30.0, 130.0, 35.0, Outcome.EXPIRED, 2),
    ]
    found = app_figures(RunRecord(0.0, 2000.0, (), [], [], [], apps=served))
    assert (found["a"].requests, found["a"].goodput_rps) == (3, 0.5)
    assert found["a"].attainment == pytest.approx(1 / 3)
    assert found["a"].outcomes == {"ok": 1, "late": 1, "refused": 1}
    assert found["a"].p50_ms == 100.0
    assert found["b"].attainment == 0.0 and isnan(found["b"].p99_ms)


@pytest.mark.parametrize(
    ("stages", "error"),
    [
        ({}, "at least one stage"),
        ({"b": Stage("m", ("c",))}, "stage 'b' is after 'c'; known: b"),
        ({"a": Stage("m", ("b",)), "b": Stage("m", ("a",))}, "in a circle: a -> b -> a"),
    ],
)
def test_what_is_no_app_is_said(stages: dict[str, Stage], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        staged("app", stages)


def test_a_scenario_knows_its_models() -> None:
    app = _app(10.0, a=Stage("app"))
    with pytest.raises(ValueError, match="both an app and a model"):
        _played(app, Steady(1.0))
