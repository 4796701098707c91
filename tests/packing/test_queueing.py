"""How full may it be: laws, and the exact distribution where there is one."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.packing.queueing import busy_limit, mean_wait_ms, required_decay


@given(st.floats(0.1, 50), st.floats(1, 500))
def test_the_limit_and_the_wait_are_each_others_inverse(work_ms: float, slack_ms: float) -> None:
    decay = float(required_decay(np.array([slack_ms]), np.array([0.99]))[0])
    assert decay == pytest.approx(log(100) / slack_ms, rel=1e-6)
    busy = busy_limit(work_ms, decay)
    if 1e-6 < busy < 1 - 1e-6:
        assert mean_wait_ms(work_ms, busy) == pytest.approx(1 / decay, rel=1e-4)


@given(st.floats(0.1, 50), st.floats(0.001, 0.999))
def test_waits_grow_with_the_load(work_ms: float, busy: float) -> None:
    wait_ms = mean_wait_ms(work_ms, busy)
    assert 0 < wait_ms < mean_wait_ms(work_ms, min(0.9999, busy * 1.01 + 1e-6))


def test_the_ends_of_the_scale() -> None:
    assert mean_wait_ms(5.0, 1.0) == float("inf")
    assert mean_wait_ms(5.0, 0.0) == 0.0
    assert busy_limit(5.0, 0.0) == 1.0
    assert busy_limit(5.0, float("inf")) == pytest.approx(0.0)


def test_a_queue_in_virtual_time_keeps_the_limit() -> None:
    """Poisson rows of 2 ms of work each, one server: 99 % wait no longer than the slack."""
    random = np.random.default_rng(7)
    work_ms, slack_ms = 2.0, 40.0
    busy = busy_limit(work_ms, float(required_decay(np.array([slack_ms]), np.array([0.99]))[0]))
    gaps = random.exponential(work_ms / busy, 200_000)
    wait, late = 0.0, 0
    for gap in gaps:
        wait = max(0.0, wait + work_ms - gap)
        late += wait > slack_ms
    assert late / len(gaps) <= 0.01
    assert busy > 0.85, "a limit that is kept by standing idle says nothing"
