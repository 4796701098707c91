"""Laws of workloads: order, rate, variation, counts, and the same times for one seed."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.plan import Demand
from interlace.policy.catalog import resolve
from interlace.runtime.log.codec import LogHeader
from interlace.runtime.log.write import LogWriter
from interlace.sim.arrivals import Gamma, Steady, Uniform, Workload, merge_arrivals, poisson
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.files import TraceError, azure_counts, azure_invocations, own_times
from interlace.sim.workload.parse import Diurnal, Mmpp, Ramp, Steps
from interlace.sim.workload.traces import (
    BinnedCounts,
    RefittedGamma,
    ReplayedTrace,
    folded,
    merged,
    refitted,
)
from tests.builders import line_profile, machine

KINDS: dict[str, Callable[[float], Workload]] = {
    "poisson": poisson,
    "gamma 0.5": lambda rate: Gamma(rate, 0.5),
    "gamma 4": lambda rate: Gamma(rate, 4.0),
    "uniform": Uniform,
    "steady": Steady,
    "steps": lambda rate: Steps(((0.0, rate / 2), (50.0, rate * 1.5))),
    "diurnal": lambda rate: Diurnal(rate / 2, rate * 1.5, 100.0),
    "mmpp": lambda rate: Mmpp(((rate / 2, 1.0), (rate * 1.5, 1.0))),
    "counts": lambda rate: BinnedCounts((int(rate * 10),) * 10, bin_s=10.0),
    "replayed": lambda rate: ReplayedTrace(np.arange(0.0, 100_000.0, 1000.0 / rate)),
    "ramp": lambda rate: Ramp((rate, rate), every=20),
    "ramp at random": lambda rate: Ramp((rate,), every=(7, 20), random_gaps=True),
    "refitted": lambda rate: RefittedGamma(((rate, 1.0), (rate, 0.5), (rate, 2.0)), 40.0),
}
kinds = pytest.mark.parametrize("kind", sorted(KINDS))


@kinds
@settings(max_examples=10, deadline=None)
@given(rate=st.floats(1.0, 400.0), seconds=st.floats(0.1, 20.0), seed=st.integers(0, 99))
def test_times_ascend_inside_the_window_and_repeat(
    kind: str, rate: float, seconds: float, seed: int
) -> None:
    workload = KINDS[kind](rate)
    times = workload(seconds, np.random.default_rng(seed))
    assert np.all(np.diff(times) >= 0)
    assert not len(times) or (times[0] >= 0 and times[-1] < seconds * 1000.0)
    assert np.array_equal(times, workload(seconds, np.random.default_rng(seed)))


@kinds
def test_the_mean_rate_is_kept(kind: str) -> None:
    times = KINDS[kind](100.0)(100.0, np.random.default_rng(1))
    assert len(times) == pytest.approx(10_000, rel=0.15 if kind == "gamma 4" else 0.12)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0, 4.0])
def test_gamma_varies_as_asked(cv: float) -> None:
    gaps = np.diff(Gamma(200.0, cv)(500.0, np.random.default_rng(2)))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.05)


def test_uniform_gaps_have_the_variation_of_a_uniform() -> None:
    gaps = np.diff(Uniform(200.0)(100.0, np.random.default_rng(2)))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / np.sqrt(3), rel=0.03)
    steady = np.diff(Steady(200.0)(100.0, np.random.default_rng(2)))
    assert np.std(steady) < 1e-6


def test_one_models_workload_does_not_move_anothers() -> None:
    first = merge_arrivals({"a": poisson(50.0), "b": poisson(80.0)}, 5.0, 3)
    other = merge_arrivals({"a": Gamma(500.0, 3.0), "b": poisson(80.0)}, 5.0, 3)
    assert np.array_equal(first.of("b"), other.of("b"))
    assert not np.array_equal(first.of("a"), other.of("a"))


def test_counts_are_conserved_minute_by_minute() -> None:
    counts = (0, 7, 120, 3)
    times = BinnedCounts(counts)(240.0, np.random.default_rng(0))
    assert tuple(np.histogram(times, bins=4, range=(0, 240_000))[0]) == counts


def test_steps_change_the_rate_when_they_say() -> None:
    times = Steps(((10.0, 50.0), (20.0, 0.0), (30.0, 200.0)))(40.0, np.random.default_rng(0))
    tens = np.histogram(times, bins=4, range=(0, 40_000))[0]
    assert tens[0] == tens[2] == 0
    assert tens[1] == pytest.approx(500, rel=0.2)
    assert tens[3] == pytest.approx(2000, rel=0.1)


def test_a_ramp_changes_its_rate_after_so_many_requests() -> None:
    """E2bird sections 3.2 and 8: 150 requests at one rate, 250 at the next, and again."""
    gaps = np.diff(Ramp((50.0, 200.0), (150, 250))(10.0, np.random.default_rng(0)))
    assert gaps[:149] == pytest.approx(20.0)
    assert gaps[149:399] == pytest.approx(5.0)
    assert gaps[399:549] == pytest.approx(20.0)


def test_states_have_their_rates_and_stays() -> None:
    """Of a Markov-modulated Poisson process the mean is that of its states, weighed by stays."""
    states = ((20.0, 3.0), (200.0, 1.0), (80.0, 2.0))
    times = Mmpp(states)(3000.0, np.random.default_rng(4))
    mean_rps = sum(rate * stay for rate, stay in states) / sum(stay for _, stay in states)
    assert len(times) / 3000.0 == pytest.approx(mean_rps, rel=0.05)
    counts = np.histogram(times, bins=3000, range=(0, 3e6))[0]
    assert counts.var() > 5 * counts.mean()  # far from Poisson, whose variance is its mean


def test_a_day_is_lowest_at_its_start_and_highest_in_its_middle() -> None:
    times = Diurnal(10.0, 90.0, 100.0)(1000.0, np.random.default_rng(5)) % 100_000.0
    parts = np.histogram(times, bins=10, range=(0, 100_000))[0] / (10 * 10.0)
    middle = np.arange(5.0, 100.0, 10.0)
    expected = 50.0 - 40.0 * np.cos(2 * np.pi * middle / 100.0) * np.sinc(0.1)
    assert parts == pytest.approx(expected, rel=0.15, abs=1.5)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    scale=st.floats(0.1, 5.0),
    speed=st.sampled_from([0.5, 1.0, 10.0]),
)
def test_a_scaled_trace_keeps_each_minutes_count(
    counts: list[int], scale: float, speed: float
) -> None:
    """Rounded up or down, minute by minute, at any speed."""
    length_s = 60.0 / speed
    times = BinnedCounts(tuple(counts), scale=scale, speed=speed)(
        length_s * len(counts), np.random.default_rng(1)
    )
    found = np.floor(times / 1000.0 / length_s).astype(int)
    each = np.bincount(found, minlength=len(counts))
    assert all(abs(a - b * scale) < 1.0 for a, b in zip(each, counts, strict=True))


def test_after_its_end_a_trace_is_silent() -> None:
    times = BinnedCounts((50, 50), bin_s=1.0)(10.0, np.random.default_rng(0))
    assert len(times) == 100
    assert times[-1] < 2000.0


def test_azure_by_minute(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("HashOwner,HashFunction,Trigger,1,2,3\no,f,http,1,2,3\no,g,queue,0,9,0\n")
    counts = azure_counts(path)
    assert counts == {"f": (1, 2, 3), "g": (0, 9, 0)}
    onto = folded(np.array(list(counts.values())), 2, rate_rps=10.0)
    assert onto[0].counts == (0, 9, 0)  # the largest goes to the first
    rate = sum(sum(one.counts) * one.scale for one in onto) / 180.0
    assert rate == pytest.approx(10.0)


def test_azure_by_invocation_arrives_when_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("app,func,end_timestamp,duration\na,f,10.0,4.0\na,g,8.0,1.0\na,f,9.0,1.5\n")
    times = azure_invocations(path)
    assert times["f"].tolist() == [0.0, 1500.0]
    assert times["g"].tolist() == [1000.0]
    assert {m: t.tolist() for m, t in merged(times, ["x"]).items()} == {"x": [0.0, 1000.0, 1500.0]}


def test_windows_are_refitted_with_their_rate_and_variation() -> None:
    random = np.random.default_rng(0)
    traces = {"f": Gamma(100.0, 3.0)(200.0, random), "g": Gamma(20.0, 1.0)(200.0, random)}
    onto = refitted(traces, ["x", "y"], window_s=100.0, rate_scale=2.0)
    times = onto["x"](200.0, np.random.default_rng(1))
    assert len(times) == pytest.approx(2 * len(traces["f"]), rel=0.1)
    gaps = np.diff(times)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(3.0, rel=0.25)


def test_a_trace_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("time_ms,model\n5,a\n1,b\n2.5,a\n")
    assert {m: t.tolist() for m, t in own_times(path).items()} == {"a": [2.5, 5.0], "b": [1.0]}


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (azure_counts, "HashFunction,1,2\nf,3,many\n", "line 2: minute 2 is 'many'; expected"),
        (azure_counts, "HashFunction,1,2\nf,3\n", "line 2: 2 values; expected 3, one for"),
        (azure_counts, "HashFunction,1\nf,3,4\n", "line 2: 3 values; expected 2, one for each"),
        (azure_counts, "HashFunction,1\nf,3²\n", "line 2: minute 1 is '3²'; expected a whole"),
        (azure_counts, "HashFunction,²\nf,3\n", "line 1: expected columns 1, 2"),
        (azure_counts, "HashFunction,1,1\nf,3,4\n", "line 1: column '1' is twice"),
        (azure_counts, "HashFunction,1\n,3\n", "line 2: HashFunction is empty; expected a name"),
        (azure_counts, f"HashFunction,1\nf,{'9' * 5000}\n", "line 2: minute 1 is '9999"),
        (azure_counts, "", "line 1: no columns; expected 1, 2"),
        (azure_counts, "HashFunction,1\nf,-3\n", "line 2: minute 1 is '-3'"),
        (azure_counts, "a,b\n1,2\n", "line 1: expected columns 1, 2"),
        (azure_counts, "HashFunction,1\n", "nothing arrives"),
        (azure_invocations, "func,end_timestamp\nf,1\n", "line 1: no column duration"),
        (azure_invocations, "func,end_timestamp,duration\nf,1,x\n", "line 2: duration is 'x'"),
        (azure_invocations, "func,end_timestamp,duration\nf,inf,1\n", "line 2: end_timestamp is"),
        (own_times, "time_ms,model\n1,a\nsoon,a\n", "line 3: time_ms is 'soon'; expected a number"),
        (own_times, "time_ms,model\n-1,a\n", "line 2: time_ms is -1; expected 0 or more"),
        (own_times, "when,model\n1,a\n", "line 1: no column time_ms; expected time_ms, model"),
        (own_times, "", "line 1: no columns; expected time_ms, model"),
        (own_times, "time_ms,model\n1e300,a\n", "line 2: time_ms is '1e300'; expected a number"),
        (own_times, "time_ms,model\n1,\udcff\n", "no CSV in UTF-8"),
        (own_times, "interlace event log 2\n", "ends within its header"),
        (own_times, "interlace event log 1\n", "of format 1; expected format 2"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_said_by_line_and_column(
    read: Callable[[Path], object], text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TraceError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_a_log_is_a_trace(tmp_path: Path) -> None:
    """What a run's log has for arrivals is what arrived in that run."""
    profiles = {name: line_profile(name) for name in "ab"}
    demand = tuple(Demand(name, 30.0, 50.0) for name in "ab")
    arrivals = merge_arrivals({"a": poisson(40.0), "b": Gamma(20.0, 2.0)}, 2.0, 3)
    path = tmp_path / "run.log"
    row, there = resolve("interlace"), machine()
    scenario = Simulation(row, there, demand, profiles, profiles, arrivals, warm_ms=1000.0)
    with closing(LogWriter(path, LogHeader("0", row.name, there))) as writer:
        simulate(scenario, [writer])
    found = own_times(path)
    for name in "ab":
        expected = arrivals.of(name) - arrivals.times_ms[0]
        assert found[name] == pytest.approx(expected, abs=1e-6)
