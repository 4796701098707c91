"""Do these loads fit one duty cycle (Nexus; gpulet section 2.2, Figure 1)?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from interlace.core.plan import Demand
from interlace.perf.latency import Surface

#: Rates and times that are equal on paper may differ by this much in floating point.
_ALLOWANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Turn:
    """One model's load on a partition; ``latency_ms[b]`` is L(b) at its share, 0 <= b."""

    model: str
    rate_rps: float
    slo_ms: float
    latency_ms: tuple[float, ...]

    @property
    def max_batch(self) -> int:
        return len(self.latency_ms) - 1


def turn(demand: Demand, latency: Surface, share_pct: int, slowdown: float = 1.0) -> Turn:
    """A model's turn on a partition of ``share_pct`` whose neighbours slow it by ``slowdown``."""
    table = [0.0]
    for batch in range(1, demand.max_batch + 1):
        table.append(latency.latency_ms(batch, share_pct) * slowdown)
    return Turn(demand.model, demand.rate_rps, demand.slo_ms, tuple(table))


@dataclass(frozen=True, slots=True)
class DutyCycle:
    """A cycle of ``duty_ms`` with one batch per turn; ``busy_ms`` of it is execution."""

    duty_ms: float
    batches: tuple[int, ...]
    busy_ms: float

    @property
    def occupancy(self) -> float:
        return self.busy_ms / self.duty_ms


def fit(turns: Sequence[Turn]) -> DutyCycle | None:
    """The cycle of lowest occupancy that serves every turn's rate within its SLO, if any.

    In each cycle model i runs one batch b_i = ceil(rate_i * duty). A request waits at most one
    cycle and one execution, so duty + L_i(b_i) <= SLO_i; the executions fit: sum L_i(b_i) <= duty.
    The search is exact: batches change only at duty = b / rate_i, and between two such points the
    longest cycle that the SLOs allow has the lowest occupancy.
    """
    best: DutyCycle | None = None
    for duty_ms in _breakpoints(turns):
        cycle = _cycle(turns, duty_ms)
        if cycle is not None and (best is None or cycle.occupancy < best.occupancy):
            best = cycle
    return best


def _breakpoints(turns: Sequence[Turn]) -> Iterator[float]:
    if not turns:
        return
    longest_ms = min(turn.slo_ms - turn.latency_ms[1] for turn in turns)
    shortest_ms = sum(turn.latency_ms[1] for turn in turns)
    points = {longest_ms}
    for one in turns:
        if one.rate_rps > 0:
            period_ms = 1000.0 / one.rate_rps
            points.update(batch * period_ms for batch in range(1, one.max_batch + 1))
    yield from (
        point for point in points if shortest_ms - _ALLOWANCE <= point <= longest_ms + _ALLOWANCE
    )


def _cycle(turns: Sequence[Turn], duty_ms: float) -> DutyCycle | None:
    busy_ms, longest_ms, batches = 0.0, duty_ms, []
    for one in turns:
        batch = max(1, ceil(one.rate_rps * duty_ms / 1000.0 - _ALLOWANCE))
        if batch > one.max_batch:
            return None
        run_ms = one.latency_ms[batch]
        busy_ms += run_ms
        longest_ms = min(longest_ms, one.slo_ms - run_ms)
        batches.append(batch)
    if busy_ms > longest_ms * (1 + _ALLOWANCE):
        return None
    return DutyCycle(max(longest_ms, busy_ms), tuple(batches), busy_ms)


def saturated_rps(alone: Turn) -> float:
    """The highest rate a partition serves when it has the model alone: 2 L(b) <= SLO (Nexus)."""
    rates = [
        1000.0 * batch / run_ms
        for batch, run_ms in enumerate(alone.latency_ms)
        if batch and 2.0 * run_ms <= alone.slo_ms
    ]
    return max(rates, default=0.0)
