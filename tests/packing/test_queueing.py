"""Several models in one partition: laws of how late they are, and what is known exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.packing.queueing import Floats, Turns, beyond, lateness

positive = st.floats(0.5, 20.0)


@st.composite
def partitions(draw: st.DrawFn) -> Turns:
    count = draw(st.integers(1, 5))

    def each(low: float, high: float) -> Floats:
        return np.array([draw(st.floats(low, high)) for _ in range(count)])

    first_ms = each(1.0, 20.0)
    return Turns(
        each(0.001, 0.3) / first_ms / count,
        each(1.0, 16.0).round(),
        first_ms,
        first_ms * each(0.0, 1.0),
        first_ms * each(2.0, 30.0),
        each(0.001, 0.1),
        each(0.3, 3.0),
        each(0.3, 2.0) / first_ms,
        each(0.0, 1.0).round(),
    )


@given(partitions())
def test_nobody_is_no_neighbour(turns: Turns) -> None:
    more = Turns(*(np.append(one, 7.0) for one in turns))
    more.rows_per_ms[-1] = 0.0
    assert lateness(more)[:-1] == pytest.approx(lateness(turns))
    assert lateness(more)[-1] == 0.0


@given(partitions(), st.floats(0.1, 10.0))
def test_time_has_no_unit(turns: Turns, factor: float) -> None:
    scaled = turns._replace(
        rows_per_ms=turns.rows_per_ms / factor,
        alone_rows_per_ms=turns.alone_rows_per_ms / factor,
        first_ms=turns.first_ms * factor,
        row_ms=turns.row_ms * factor,
        slo_ms=turns.slo_ms * factor,
    )
    assert lateness(scaled) == pytest.approx(lateness(turns), rel=1e-6)


@given(partitions(), st.floats(1.0, 3.0))
def test_stricter_promises_are_kept_by_fewer(turns: Turns, factor: float) -> None:
    strict = lateness(turns._replace(loss=turns.loss / factor))
    known = lateness(turns)
    there = np.isfinite(known)
    assert (strict[there] >= known[there] * (1 - 1e-9)).all()
    assert not np.isfinite(strict[~there]).any()


@given(partitions())
def test_a_model_alone_is_late_as_the_table_says(turns: Turns) -> None:
    one = Turns(*(each[:1] for each in turns))
    assert lateness(one) == pytest.approx(one.rows_per_ms / one.alone_rows_per_ms)


@settings(max_examples=50)
@given(partitions())
def test_many_partitions_at_once_are_each_alone(turns: Turns) -> None:
    half = turns._replace(rows_per_ms=turns.rows_per_ms / 2.0)
    both = lateness(Turns(*(np.stack(pair) for pair in zip(turns, half, strict=True))))
    assert both[0] == pytest.approx(lateness(turns))
    assert both[1] == pytest.approx(lateness(half))


def test_a_rare_request_is_late_behind_a_batch_that_ends_too_late() -> None:
    """Beside batches of 10 ms in a tenth of the time: 4 of the 10 are too long for 6 of slack."""
    none = 1e-9
    turns = Turns(
        np.array([none, 0.01]),
        np.array([1.0, 1.0]),
        np.array([2.0, 10.0]),
        np.zeros(2),
        np.array([8.0, 500.0]),
        np.array([0.01, 0.01]),
        np.ones(2),
        np.array([0.1, 0.1]),
        np.zeros(2),
    )
    assert lateness(turns)[0] == pytest.approx(0.1 * 0.4 / 0.01, rel=1e-3)
    pooled = turns._replace(elsewhere=np.array([0.0, 1.0]))
    assert lateness(pooled)[0] == pytest.approx(0.9 * 0.4 / 0.01, rel=1e-3)


@given(positive, positive, positive, st.floats(0.0, 1.0))
def test_waits_beyond_a_slack_are_a_distribution(
    slack_ms: float, length_ms: float, mean_ms: float, ahead: float
) -> None:
    given_ms = [np.array(x) for x in (slack_ms, length_ms, mean_ms, ahead)]
    late = float(beyond(*given_ms))
    assert 0.0 <= late <= 1.0
    assert float(beyond(np.array(slack_ms * 1.1), *given_ms[1:])) <= late + 1e-12
    random = np.random.default_rng(0)
    wait_ms = random.uniform(0, length_ms, 4000)
    wait_ms += random.exponential(mean_ms, 4000) * (random.uniform(size=4000) < ahead)
    assert late == pytest.approx(float((wait_ms > slack_ms).mean()), abs=0.05)
