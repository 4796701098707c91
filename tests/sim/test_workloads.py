"""Laws of workloads: order, rate, variation, counts, and the same times for one seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.sim.arrivals import Workload, mixed
from interlace.sim.workload.changing import Diurnal, Mmpp, Ramp, Steps
from interlace.sim.workload.recorded import (
    Counts,
    Replayed,
    TraceError,
    azure_counts,
    azure_invocations,
    folded,
    own_times,
    refitted,
)
from interlace.sim.workload.renewal import Gamma, poisson
from interlace.sim.workload.spacing import Steady, Uniform

KINDS: dict[str, Callable[[float], Workload]] = {
    "poisson": poisson,
    "gamma 0.5": lambda rate: Gamma(rate, 0.5),
    "gamma 4": lambda rate: Gamma(rate, 4.0),
    "uniform": Uniform,
    "steady": Steady,
    "steps": lambda rate: Steps(((0.0, rate / 2), (50.0, rate * 1.5))),
    "diurnal": lambda rate: Diurnal(rate / 2, rate * 1.5, 100.0),
    "mmpp": lambda rate: Mmpp(((rate / 2, 1.0), (rate * 1.5, 1.0))),
    "counts": lambda rate: Counts((int(rate * 10),) * 10, bin_s=10.0),
    "replayed": lambda rate: Replayed(np.arange(0.0, 100_000.0, 1000.0 / rate)),
    "ramp": lambda rate: Ramp((rate, rate), every=20),
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
    first = mixed({"a": poisson(50.0), "b": poisson(80.0)}, 5.0, 3)
    other = mixed({"a": Gamma(500.0, 3.0), "b": poisson(80.0)}, 5.0, 3)
    assert np.array_equal(first.of("b"), other.of("b"))
    assert not np.array_equal(first.of("a"), other.of("a"))


def test_counts_are_conserved_minute_by_minute() -> None:
    counts = (0, 7, 120, 3)
    times = Counts(counts)(240.0, np.random.default_rng(0))
    assert tuple(np.histogram(times, bins=4, range=(0, 240_000))[0]) == counts


def test_steps_change_the_rate_when_they_say() -> None:
    times = Steps(((10.0, 50.0), (20.0, 0.0), (30.0, 200.0)))(40.0, np.random.default_rng(0))
    tens = np.histogram(times, bins=4, range=(0, 40_000))[0]
    assert tens[0] == tens[2] == 0
    assert tens[1] == pytest.approx(500, rel=0.2)
    assert tens[3] == pytest.approx(2000, rel=0.1)


def test_azure_by_minute(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("HashOwner,HashFunction,Trigger,1,2,3\no,f,http,1,2,3\no,g,queue,0,9,0\n")
    counts = azure_counts(path)
    assert counts == {"f": (1, 2, 3), "g": (0, 9, 0)}
    onto = folded(counts, ["x", "y"], rate_rps=10.0)
    assert onto["x"].counts == (0, 9, 0)  # the largest goes to the first
    rate = sum(sum(one.counts) * one.scale for one in onto.values()) / 180.0
    assert rate == pytest.approx(10.0)
    path.write_text("HashFunction,1\nf,many\n")
    with pytest.raises(TraceError, match="line 2"):
        azure_counts(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="line 1"):
        azure_counts(path)


def test_azure_by_invocation_arrives_when_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("app,func,end_timestamp,duration\na,f,10.0,4.0\na,g,8.0,1.0\na,f,9.0,1.5\n")
    times = azure_invocations(path)
    assert times["f"].tolist() == [0.0, 1500.0]
    assert times["g"].tolist() == [1000.0]
    path.write_text("app,func,end_timestamp\na,f,1\n")
    with pytest.raises(TraceError, match="duration"):
        azure_invocations(path)


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
    path.write_text("time_ms,model\nsoon,a\n")
    with pytest.raises(TraceError, match="line 2"):
        own_times(path)
