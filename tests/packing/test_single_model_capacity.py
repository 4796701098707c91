"""What a lone host can be asked for: laws of the table, and where it is known exactly."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.plan import Demand
from interlace.packing.batch_options import BatchOptions, demand_arrays
from interlace.packing.single_model_capacity import alone_rows_per_s, most_rows

slos = st.floats(1.0, 60.0)
row_parts = st.floats(0.0, 1.0)
limits = st.integers(1, 64)
cvs = st.floats(0.3, 4.0)
attainments = st.sampled_from((0.9, 0.95, 0.99, 0.999))
#: Cells are found by chance, and lie this far from smooth.
ROUGH = 1.05


def _most(slo: float, row: float, limit: float, cv: float, attainment: float) -> float:
    return float(most_rows(*(np.array(x) for x in (slo, row, limit, cv, attainment))))


@given(slos, row_parts, limits, cvs, attainments, st.floats(1.0, 3.0))
def test_more_time_and_looser_promises_carry_more(
    slo: float, row: float, limit: int, cv: float, attainment: float, factor: float
) -> None:
    known = _most(slo, row, limit, cv, attainment)
    assert _most(slo * factor, row, limit, cv, attainment) * ROUGH >= known
    assert _most(slo, row, limit, cv, 1 - (1 - attainment) / factor) <= known * ROUGH
    assert _most(slo, row, min(64, limit * factor), cv, attainment) * ROUGH >= known


@given(slos, row_parts, limits, cvs, attainments)
def test_no_rate_is_above_full_batches_back_to_back(
    slo: float, row: float, limit: int, cv: float, attainment: float
) -> None:
    full = limit / (1 - row + row * limit)
    assert _most(slo, row, limit, cv, attainment) <= full / attainment * ROUGH


@given(slos, row_parts, limits, attainments)
def test_bursts_cost(slo: float, row: float, limit: int, attainment: float) -> None:
    rates = [_most(slo, row, limit, cv, attainment) for cv in (0.3, 1.0, 2.0, 4.0)]
    assert all(after <= before * ROUGH for before, after in pairwise(rates))


@given(row_parts, limits, attainments)
def test_who_may_not_wait_is_lost_as_erlang_says(row: float, limit: int, attainment: float) -> None:
    """M/D/1/1: of Poisson arrivals with no time to wait, busy / (1 + busy) find the host busy."""
    loss = 1.0 - attainment
    assert _most(1.0, row, limit, 1.0, attainment) == pytest.approx(loss / attainment, rel=0.12)


@given(limits)
def test_patience_fills_every_batch(limit: int) -> None:
    full = limit / (0.8 + 0.2 * limit)
    assert _most(60.0, 0.2, limit, 1.0, 0.99) >= 0.9 * full


def test_below_the_latency_of_one_row_nobody_is_in_time() -> None:
    assert _most(0.99, 0.1, 8, 1.0, 0.99) == 0.0


@given(st.floats(1.0, 50.0), st.floats(1.0, 20.0), st.integers(1, 4))
def test_what_a_model_may_be_asked_for(first_ms: float, slo: float, hosts: int) -> None:
    """Rises with the largest batch and with the hosts of its queue; hardly moves with rounding."""
    rows = np.array([[1.0, 2.0, 4.0, 8.0]])
    demand = [Demand("m", 1.0, slo * first_ms, 8)]
    run_ms = first_ms * (0.7 + 0.3 * rows)
    options = BatchOptions(
        100, rows, np.where(run_ms <= slo * first_ms, run_ms, np.inf), np.array([8.0])
    )
    known = alone_rows_per_s(options, demand_arrays(demand))[0]
    there = known[known > 0]
    assert (np.diff(there) >= -0.05 * there[:-1]).all()
    pooled = alone_rows_per_s(options, demand_arrays(demand, np.array([float(hosts)])))[0]
    assert (pooled * ROUGH >= known).all()
    moved = replace(options, latency_ms=options.latency_ms * (1 - 1e-7))
    assert alone_rows_per_s(moved, demand_arrays(demand))[0] == pytest.approx(known, rel=1e-3)
