"""Send times: the rate that was asked for, the same for the same seed."""

from __future__ import annotations

import statistics
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from interlace.load.open_loop import ArrivalProcess, send_times


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
