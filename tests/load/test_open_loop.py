"""The load generator: arrivals, honest latency, statuses, and what never came."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures, goodput_rps, lagged, open_loop, poisson
from interlace.load.connections import Call, EncodedCall
from interlace.load.open_loop import (
    UNANSWERED,
    Arrival,
    ArrivalProcess,
    CallSample,
    LoadRun,
    OpenLoop,
    percentile,
    send_times,
)
from tests.cli.fakeserver import Behaviour, FakeServer


@contextmanager
def server(status: int = 200, delay_s: float = 0.0, chunked: bool = False) -> Iterator[EncodedCall]:
    """A server that answers every POST alike; yields a call to it."""
    with FakeServer(lambda call: Behaviour(delay_s, status, b"abc", chunked)) as made:
        yield Call(made.port, "/infer", b"body").encoded()


def test_arrivals_are_poisson_and_repeat() -> None:
    arrivals = poisson([200.0, 50.0, 0.0], 20.0, seed=3)
    assert arrivals == poisson([200.0, 50.0, 0.0], 20.0, seed=3) != poisson([200.0, 50.0], 20.0, 4)
    assert arrivals == sorted(arrivals) and arrivals[-1].due_s < 20
    counts = [sum(a.tag == tag for a in arrivals) for tag in range(3)]
    assert 3700 < counts[0] < 4300 and 850 < counts[1] < 1150 and counts[2] == 0
    gaps = [b.due_s - a.due_s for a, b in pairwise(arrivals)]
    assert sum(gap > 1 / 250 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


@pytest.mark.parametrize("chunked", [False, True])
def test_open_loop_answers_every_arrival(chunked: bool) -> None:
    with server(chunked=chunked) as call:
        run = OpenLoop([call], poisson([100.0], 0.5, 1), 8).run(5.0)
    assert figures(run)["statuses"] == {"200": len(poisson([100.0], 0.5, 1))}


def test_what_is_sent_while_all_is_cold_is_left_out() -> None:
    with server() as call:
        run = open_loop(call, 200.0, 0.3)
    assert 30 < len(run.samples) < 100 and min(one.due_s for one in run.samples) >= 0.3
    assert figures(run)["lag_p99_ms"] is not None


def test_latency_counts_from_when_a_call_was_due() -> None:
    """One connection, 50 ms a call, all due at once: the waiting is the caller's, so it counts."""
    with server(delay_s=0.05) as call:
        run = OpenLoop([call], [Arrival(0.0, 0)] * 4, 1).run(10.0)
    latencies = sorted(sample.latency_s for sample in run.samples)
    assert all(latency >= 0.05 * (place + 1) for place, latency in enumerate(latencies))


def test_refusals_and_silence_are_told_apart() -> None:
    with server(status=429) as call:
        refused = OpenLoop([call], [Arrival(0.0, 0)] * 3, 4).run(5.0)
    assert [sample.status for sample in refused.samples] == [429] * 3
    with server(delay_s=1.5) as call:
        silent = OpenLoop([call], [Arrival(0.0, 0)] * 2, 4).run(0.2)
    assert [sample.status for sample in silent.samples] == [UNANSWERED] * 2


def test_nobody_listens() -> None:
    call = Call(1, "/", b"").encoded()
    with pytest.raises(OSError):
        OpenLoop([call], [Arrival(0.0, 0)], 1)


def test_closed_loop_keeps_its_connections_busy() -> None:
    with server(delay_s=0.01) as call:
        run = closed_loop(call, 4, 0.5, 0.1)
    result = figures(run)
    assert result["ok"] > 20 and set(result["statuses"]) == {"200"}
    assert result["p50_ms"] >= 10


def test_figures() -> None:
    samples = [CallSample(0, 0.0, i / 1000, 200) for i in range(1, 101)] + [
        CallSample(0, 0.0, 0.001, 503)
    ]
    run = LoadRun(samples, 2.0, 0.5)
    result = figures(run)
    assert (result["ok"], result["rps"], result["statuses"]) == (100, 50.0, {"200": 100, "503": 1})
    assert result["p50_ms"] == pytest.approx(51, abs=1) and result["max_ms"] == 100
    assert goodput_rps(samples, 10.0, 2.0) == 5.0
    assert result["lag_p99_ms"] is None and not lagged(result)
    late = [CallSample(0, 1.0, 0.01, 200, sent_s=1.004), CallSample(0, 1.0, 9.0, 200, 9.0, True)]
    assert figures(LoadRun(late, 2.0, 0.5))["lag_p99_ms"] == 4.0
    assert lagged({"lag_p99_ms": 4.0, "p99_ms": 10.0})
    assert not lagged({"lag_p99_ms": 2.0, "p99_ms": 10.0})
    assert percentile([], 50) is None


@given(
    st.sampled_from(ArrivalProcess), st.floats(0.5, 500.0), st.floats(0.1, 5.0), st.integers(0, 99)
)
def test_times_ascend_within_the_run(
    kind: ArrivalProcess, rate_rps: float, seconds: float, seed: int
) -> None:
    times = send_times(kind, rate_rps, seconds, seed)
    assert times == sorted(times)
    assert all(0 <= time_s < seconds for time_s in times)
    assert times == send_times(kind, rate_rps, seconds, seed)


def test_poisson_has_the_rate_and_the_spread_of_poisson() -> None:
    gaps = [b - a for a, b in pairwise(send_times(ArrivalProcess.POISSON, 100.0, 200.0, 1))]
    assert abs(statistics.mean(gaps) - 0.01) < 0.0005
    assert abs(statistics.stdev(gaps) - 0.01) < 0.001  # an exponential's deviation is its mean


def test_uniform_is_a_metronome() -> None:
    assert send_times(ArrivalProcess.UNIFORM, 4.0, 1.0, 1) == [0.0, 0.25, 0.5, 0.75]
