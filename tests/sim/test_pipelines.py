"""Apps of several models: budgets along every path, order of stages, and what became of each."""

from collections.abc import Mapping
from dataclasses import replace
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.papers.apps import game, recog, traffic
from interlace.core.plan import Demand
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Workload, merge_arrivals
from interlace.sim.pipeline import ByWork, Pipeline, PipelineStage, demands, even
from interlace.sim.record import AppServed, RunRecord
from interlace.sim.report import app_figures
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Steady, poisson
from tests.builders import line_profile, machine


def _played(
    apps: Mapping[str, Pipeline],
    workloads: Mapping[str, Workload],
    demand: tuple[Demand, ...] | None = None,
    row_ms: Mapping[str, float] | None = None,
    seconds: float = 5.0,
    seed: int = 1,
    name: str = "interlace",
    truth_ms: Mapping[str, float] | None = None,
) -> RunRecord:
    asked = demand or demands(apps, dict.fromkeys(apps, 20.0))
    profiles = {
        one.model: line_profile(one.model, row_ms=(row_ms or {}).get(one.model, 1.0))
        for one in asked
    }
    slower = {model: line_profile(model, row_ms=ms) for model, ms in (truth_ms or {}).items()}
    return simulate(
        Simulation(
            resolve(name),
            machine(),
            asked,
            profiles,
            profiles | slower,
            merge_arrivals(workloads, seconds, seed),
            warm_ms=1_000.0,
            epoch_ms=float("inf"),
            pipelines=apps,
        )
    )


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    count = draw(st.integers(1, 6))
    stages = []
    for index in range(count):
        parents = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        after = tuple(f"s{parent}" for parent in sorted(parents))
        fan = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.5]))
        stages.append(PipelineStage(f"s{index}", f"m{index % 3}", after, fan))
    work = {stage.name: draw(st.floats(0.1, 10.0)) for stage in stages}
    split = draw(st.sampled_from([even, ByWork(work)]))
    return Pipeline(tuple(stages), draw(st.floats(50.0, 500.0)), split)


def _paths(app: Pipeline) -> list[list[str]]:
    """Every path from a stage without parents to one without children."""
    paths = {one.name: [[one.name]] for one in app.stages if not one.after}
    for stage in app.stages:
        for parent in stage.after:
            longer = [[*path, stage.name] for path in paths[parent]]
            paths[stage.name] = [*paths.get(stage.name, []), *longer]
    inner = {parent for stage in app.stages for parent in stage.after}
    return [path for name, found in paths.items() if name not in inner for path in found]


@given(pipelines())
def test_no_path_takes_more_than_the_slo_and_the_longest_takes_all_of_it(app: Pipeline) -> None:
    time_ms = app.split(app)
    lengths = [sum(time_ms[name] for name in path) for path in _paths(app)]
    assert max(lengths) == pytest.approx(app.slo_ms)
    assert min(time_ms.values()) > 0


@given(pipelines())
def test_every_stage_has_at_least_its_time_before_its_end(app: Pipeline) -> None:
    time_ms, ends = app.split(app), app.ends_ms()
    for stage in app.stages:
        begins_ms = max((ends[parent] for parent in stage.after), default=0.0)
        assert ends[stage.name] - begins_ms >= time_ms[stage.name] - 1e-9
        assert ends[stage.name] <= app.slo_ms
    inner = {parent for stage in app.stages for parent in stage.after}
    assert all(ends[s.name] == app.slo_ms for s in app.stages if s.name not in inner)


@settings(max_examples=25, deadline=None)
@given(pipelines(), st.integers(0, 5))
def test_each_arrival_of_an_app_has_one_result(app: Pipeline, seed: int) -> None:
    workload = poisson(15.0)
    record = _played({"app": app}, {"app": workload}, seed=seed, seconds=2.0)
    trace = merge_arrivals({"app": workload}, 2.0, seed)
    assert sorted(one.arrived_ms - record.from_ms for one in record.apps) == pytest.approx(
        trace.times_ms.tolist()
    )
    for one in record.apps:
        assert one.arrived_ms <= one.answered_ms
        in_time = one.answered_ms <= one.deadline_ms
        assert in_time or one.outcome is not Outcome.OK
    if all(one.outcome is Outcome.OK for one in record.apps):
        whole = all(stage.fan == int(stage.fan) for stage in app.stages)
        expected = sum(app.rates().values()) * len(record.apps)
        assert not whole or sum(one.requests for one in record.apps) == expected


def test_children_come_after_their_parents_and_what_is_left_is_passed_on() -> None:
    app = traffic(slo_ms=100.0)
    record = _played({"traffic": app}, {"traffic": Steady(10.0)})
    ends: dict[float, float] = {}
    begins: dict[float, list[float]] = {}
    for one in record.served:
        start_ms = one.deadline_ms - app.ends_ms()[one.model]
        if one.model == "ssd":
            ends[round(start_ms, 6)] = one.answered_ms
            assert one.deadline_ms - one.arrived_ms == pytest.approx(50.0)
        else:
            begins.setdefault(round(start_ms, 6), []).append(one.arrived_ms)
            assert one.deadline_ms - one.arrived_ms > 60.0  # SSD took a few ms of its 50
    assert len(record.apps) == 50
    assert all(one.requests == 3 and one.outcome is Outcome.OK for one in record.apps)
    assert begins.keys() == ends.keys()
    assert all(found == [ends[start]] * 2 for start, found in begins.items())


def test_a_join_waits_for_all_of_all() -> None:
    stages = (
        PipelineStage("a", "m0", fan=3.0),
        PipelineStage("b", "m1"),
        PipelineStage("c", "m2", ("a", "b"), 2.0),
    )
    app = Pipeline(stages, 200.0)
    record = _played({"app": app}, {"app": Steady(5.0)}, row_ms={"m1": 30.0})
    assert {one.requests for one in record.apps} == {6}
    for begun in (one for one in record.served if one.model == "m2"):
        start_ms = begun.deadline_ms - 200.0
        slow = [o for o in record.served if o.model == "m1" and o.arrived_ms <= begun.arrived_ms]
        assert max(o.answered_ms for o in slow) == begun.arrived_ms > start_ms + 18.0


def test_a_failed_stage_ends_the_app() -> None:
    app = Pipeline((PipelineStage("a", "a"), PipelineStage("b", "b", ("a",))), 60.0)
    demand = (Demand("a", 20.0, 30.0), Demand("b", 20.0, 30.0))
    record = _played({"app": app}, {"app": Steady(10.0)}, demand, {"a": 100.0})
    assert not [one for one in record.served if one.model == "b"]
    assert {one.outcome for one in record.apps} == {Outcome.REFUSED}


@pytest.mark.parametrize(("slow", "outcome"), [("a", Outcome.EXPIRED), ("b", Outcome.LATE)])
def test_slower_than_believed(slow: str, outcome: Outcome) -> None:
    """After a first stage that took all the time nothing is begun; a last one is just late."""
    app = Pipeline((PipelineStage("a", "a"), PipelineStage("b", "b", ("a",))), 40.0)
    demand = (Demand("a", 5.0, 20.0), Demand("b", 5.0, 20.0))
    truth_ms = {slow: 90.0}
    record = _played({"app": app}, {"app": Steady(5.0)}, demand, {}, 0.3, 0, "triton", truth_ms)
    assert [one.outcome for one in record.apps] == [outcome]
    assert [one.requests for one in record.apps] == [1 if slow == "a" else 2]


def test_a_picture_holds_the_same_whoever_looks_at_it() -> None:
    app = recog(slo_ms=200.0, people=2.5, vehicles=0.3)
    counts = []
    for name in ("interlace", "gpulet"):
        record = _played({"recog": app}, {"recog": poisson(10.0)}, name=name)
        assert {one.outcome for one in record.apps} == {Outcome.OK}
        by_arrival = sorted((one.arrived_ms, one.requests) for one in record.apps)
        counts.append([requests for _, requests in by_arrival])
    assert counts[0] == counts[1]
    assert set(counts[0]) == {3, 4, 5}  # MobileNet, two or three people, perhaps a vehicle


def test_plain_requests_go_beside_apps() -> None:
    apps = {"traffic": traffic(slo_ms=100.0)}
    demand = (*demands(apps, {"traffic": 10.0}), Demand("res", 10.0, 50.0))
    record = _played(apps, {"traffic": Steady(10.0), "res": Steady(20.0)}, demand)
    assert len(record.apps) == 50
    assert sum(one.model == "res" for one in record.served) == 100


def test_equal_scenarios_give_equal_records() -> None:
    apps = {"recog": recog(slo_ms=60.0, people=1.5)}
    first, second = (_played(apps, {"recog": poisson(60.0)}) for _ in range(2))
    assert first == second


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


def test_what_apps_ask_of_their_models() -> None:
    found = {
        one.model: one
        for one in demands({"game": game(), "traffic": traffic()}, {"game": 10.0, "traffic": 5.0})
    }
    assert found["le"].rows_per_s == 60.0
    assert (found["res"].rows_per_s, found["res"].slo_ms) == (10.0, 108.0)
    assert (found["vgg"].rows_per_s, found["vgg"].slo_ms) == (5.0, 101.0)
    both = demands({"a": traffic(), "b": traffic(slo_ms=100.0)}, {"a": 1.0, "b": 2.0})
    assert {one.model: (one.rows_per_s, one.slo_ms) for one in both}["ssd"] == (3.0, 50.0)


def test_what_is_no_pipeline_is_said() -> None:
    with pytest.raises(ValueError, match="two stages are named 'a'"):
        Pipeline((PipelineStage("a", "m"), PipelineStage("a", "m")), 10.0)
    with pytest.raises(ValueError, match="stage 'b' is after 'c'"):
        Pipeline((PipelineStage("a", "m"), PipelineStage("b", "m", ("c",))), 10.0)
    with pytest.raises(ValueError, match="fan of -1"):
        Pipeline((PipelineStage("a", "m", fan=-1.0),), 10.0)
    apps = {"a": Pipeline((PipelineStage("a", "a"),), 10.0)}
    with pytest.raises(ValueError, match="both an app and a model"):
        _played(apps, {})
    with pytest.raises(ValueError, match="which has no demand"):
        _played({"b": replace(apps["a"])}, {}, (Demand("c", 1.0, 10.0),))
