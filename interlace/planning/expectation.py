"""What a plan will be like for its users: p99 latency and attainment under random arrivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, expm1, inf

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.queueing import pooled
from interlace.perf.latency import Surface, surface

_TAIL = 0.01  #: p99
_FAR = 10  #: beyond this many SLOs a p99 is not told in figures


@dataclass(frozen=True, slots=True)
class Expectation:
    """Predicted latency that 99 % stay within, and the part of requests within the SLO."""

    p99_ms: float
    attainment: float

    def p99_text(self, slo_ms: float) -> str:
        """The p99 for people; of queues without end, that it is far beyond the SLO says enough."""
        if self.p99_ms == inf:
            return "-"
        return f"{self.p99_ms:.1f} ms" if self.p99_ms <= _FAR * slo_ms else f"> {_FAR} x SLO"


@dataclass(frozen=True, slots=True)
class _Place:
    """One model in one partition: its batch, what may block it, and the work that waits there."""

    rows_per_s: float
    own_ms: float
    blocked_ms: float
    waiting_ms: float  #: mean of the exponential part of the wait; infinite where overloaded


def expect(
    plan: Plan, demand: Sequence[Demand], gpus: Mapping[str, Gpu], profiles: Profiles
) -> Mapping[str, Expectation]:
    """Each planned model's p99 and attainment, approximately, if nothing is refused.

    A request comes at any moment of the longest batch beside it (or of its cycle, in a plan of
    cycles), spread over the replicas of its model; then it waits for work that is exponential at
    Lundberg's rate, then for its own batch. A model in several partitions is their mixture by
    rate. What is unserved is in time for nobody.
    """
    surfaces = {one.model: surface(profiles[one.model]) for one in demand if one.model in profiles}
    by_name = {one.model: one for one in demand}
    credit = _credits(plan)
    places: dict[str, list[_Place]] = {}
    for partition in plan.partitions:
        if partition.gpu in gpus:
            for slot in partition.slots:
                place = _place(slot, partition, surfaces, by_name, credit)
                places.setdefault(slot.model, []).append(place)
    return {
        model: _mixture(found, by_name[model], plan.unserved_rows_per_s.get(model, 0.0))
        for model, found in places.items()
    }


def _credits(plan: Plan) -> dict[str, float]:
    """How many equal partitions each model's queue is as good as."""
    rates: dict[str, list[float]] = {}
    for slot in (s for p in plan.partitions for s in p.slots):
        rates.setdefault(slot.model, []).append(slot.rows_per_s)
    found = {}
    for model, each in rates.items():
        squares = sum(rate**2 for rate in each)
        equal = sum(each) ** 2 / squares if squares > 0 else float(len(each))
        found[model] = float(pooled(np.array([equal]))[0])
    return found


def _place(
    slot: Slot,
    partition: Partition,
    surfaces: Mapping[str, Surface],
    demand: Mapping[str, Demand],
    credit: Mapping[str, float],
) -> _Place:
    runs_ms = {
        s.model: surfaces[s.model].latency_ms(s.batch, partition.share_pct) for s in partition.slots
    }
    busy = weight = 0.0
    for other in partition.slots:
        row_ms = runs_ms[other.model] / other.batch
        load = other.rows_per_s * row_ms / 1000.0
        busy += load
        weight += load * row_ms * demand[other.model].cv ** 2 / credit[other.model]
    longest_ms = partition.duty_ms or max(runs_ms.values())
    waiting_ms = _mean_wait_ms(weight / max(busy, 1e-12), busy)
    return _Place(slot.rows_per_s, runs_ms[slot.model], longest_ms / credit[slot.model], waiting_ms)


def _mixture(places: Sequence[_Place], demand: Demand, unserved_rows_per_s: float) -> Expectation:
    total_rows_per_s = sum(place.rows_per_s for place in places)
    weights = [
        place.rows_per_s / total_rows_per_s if total_rows_per_s > 0 else 1 / len(places)
        for place in places
    ]

    def within(limit_ms: float) -> float:
        pairs = zip(weights, places, strict=True)
        return sum(weight * _within(place, limit_ms) for weight, place in pairs)

    asked_rps = total_rows_per_s + unserved_rows_per_s
    served = total_rows_per_s / asked_rps if asked_rps > 0 else 1.0
    return Expectation(_quantile_ms(within, places), within(demand.slo_ms) * served)


def _quantile_ms(within: Callable[[float], float], places: Sequence[_Place]) -> float:
    """The latency that 99 % stay within, by bisection; infinite where a partition is overloaded."""
    if any(place.waiting_ms == inf for place in places):
        return inf
    low = 0.0
    high = max(p.own_ms + p.blocked_ms + 8 * p.waiting_ms for p in places)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < 1 - _TAIL else (low, middle)
    return high


def _within(place: _Place, limit_ms: float) -> float:
    """P(uniform wait for the batch that blocks + exponential wait + own batch <= limit)."""
    left_ms = limit_ms - place.own_ms
    if left_ms <= 0 or place.waiting_ms == inf:
        return 0.0
    blocked_ms = max(place.blocked_ms, 1e-9)
    mean_ms = max(place.waiting_ms, 1e-9)
    inside_ms = min(left_ms, blocked_ms)
    tail = exp(-(left_ms - inside_ms) / mean_ms) - exp(-left_ms / mean_ms)
    return min(1.0, max(0.0, (inside_ms - mean_ms * tail) / blocked_ms))


def _mean_wait_ms(work_ms: float, busy: float) -> float:
    """The mean of the exponential that bounds the work that waits (Lundberg); infinite at 1."""
    if busy >= 1.0:
        return inf
    if busy <= 0.0:
        return 0.0
    low, high = 1e-9, 500.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if middle / expm1(middle) > busy else (low, middle)
    return work_ms / high
