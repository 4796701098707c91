"""Batches side by side: work is conserved whatever the speeds, rules share as they say."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.simulated.physics import RunningBatch, equal_rows
from interlace.device.simulated.running_batches import RunningBatches
from interlace.perf.interference import CoRunner
from interlace.perf.latency import surface
from interlace.runtime.clock import SimClock
from tests.builders import line_profile

SURFACES = {
    "a": surface(line_profile("a"), "median_ms"),
    "b": surface(line_profile("b", 4.0, 2.0), "median_ms"),
}
#: (model, rows, share, ms since the one before began)
Batches = Sequence[tuple[str, int, int, float]]
BATCHES = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(1, 16), st.sampled_from((50, 100)), st.floats(0.0, 12.0)
    ),
    min_size=1,
    max_size=7,
)


@dataclass(frozen=True, slots=True)
class ByRows:
    """Neighbours slow by their rows."""

    factor: float

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return 1.0 + self.factor * sum(one.batch for one in neighbours)


def spans_ms(
    batches: Batches, factor: float, stall: tuple[float, float] | None = None
) -> list[tuple[float, float]]:
    """When each batch begins and ends."""
    clock = SimClock()
    progress = RunningBatches(clock, ByRows(factor) if factor else None, equal_rows)
    begins: list[float] = []
    ends: dict[int, float] = {}

    def begin(index: int) -> None:
        model, rows, share_pct, _ = batches[index]
        busy = RunningBatch(model, rows, share_pct, SURFACES[model])
        work_ms = busy.latency.latency_ms(rows, share_pct)
        begins.append(clock.now_ms())
        progress.begin(f"p{index}", busy, work_ms, lambda: ends.setdefault(index, clock.now_ms()))

    if stall is not None:
        clock.call_at(stall[0], lambda: progress.stall(stall[1]))
    at_ms = 0.0
    for index, (_, _, _, wait_ms) in enumerate(batches):
        at_ms += wait_ms
        clock.call_at(at_ms, lambda which=index: begin(which))
    clock.run(1e6)
    return [(begins[index], ends[index]) for index in range(len(batches))]


def work_done_ms(
    spans: Sequence[tuple[float, float]], batches: Batches, factor: float
) -> list[float]:
    """Speed times time, summed up from who ran beside whom: what each batch got."""
    done = [0.0] * len(batches)
    times = sorted({time for span in spans for time in span})
    for low, high in pairwise(times):
        there = [i for i, (begin, end) in enumerate(spans) if begin <= low and end >= high]
        busy = [RunningBatch(*batches[i][:3], SURFACES[batches[i][0]]) for i in there]
        over = sum(one.share_pct for one in busy) > 100
        speeds = equal_rows(busy) if over else [1.0] * len(busy)
        rows = sum(one.rows for one in busy)
        for i, one, speed in zip(there, busy, speeds, strict=True):
            done[i] += (high - low) * speed / (1.0 + factor * (rows - one.rows))
    return done


@given(batches=BATCHES, factor=st.sampled_from((0.0, 0.05)))
def test_every_batch_gets_the_work_it_asked_for(batches: Batches, factor: float) -> None:
    spans = spans_ms(batches, factor)
    works = [SURFACES[m].latency_ms(rows, share) for m, rows, share, _ in batches]
    assert work_done_ms(spans, batches, factor) == pytest.approx(works, abs=1e-6)


@given(batches=BATCHES)
def test_company_never_helps(batches: Batches) -> None:
    for (begin, end), (model, rows, share_pct, _) in zip(
        spans_ms(batches, 0.0), batches, strict=True
    ):
        assert end - begin >= SURFACES[model].latency_ms(rows, share_pct) - 1e-9


@given(batches=BATCHES, begins=st.floats(0.0, 30.0), lasts=st.floats(0.1, 20.0))
def test_a_stall_delays_all_by_its_length(batches: Batches, begins: float, lasts: float) -> None:
    """Batches that began before it end that much later, unless they had ended by then."""
    together = [(*batch[:3], 0.0) for batch in batches]
    calm = spans_ms(together, 0.0)
    stalled = spans_ms(together, 0.0, (begins, lasts))
    for (_, end), (_, later) in zip(calm, stalled, strict=True):
        if abs(end - begins) > 1e-6:
            assert later == pytest.approx(end + (lasts if end > begins else 0.0))
