"""What a plan will be like for its users: p99 latency and attainment under random arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.latency import Surface, surface

_TAIL = 0.01  #: p99


@dataclass(frozen=True, slots=True)
class Expectation:
    """Predicted latency that 99 % stay within, and the part of requests within the SLO."""

    p99_ms: float
    attainment: float


@dataclass(frozen=True, slots=True)
class _Place:
    """One model in one partition: its batch, what may block it, and the work that waits there."""

    rate_rps: float
    own_ms: float
    blocked_ms: float
    waiting_ms: float  #: mean of the exponential part of the wait; infinite where overloaded


def expect(
    plan: Plan, demand: Sequence[Demand], gpus: Mapping[str, Gpu], profiles: Profiles
) -> Mapping[str, Expectation]:
    """Each planned model's p99 and attainment, by heavy-traffic approximation.

    A request waits for the longest batch beside it (or its whole cycle, in a plan of cycles),
    spread over the replicas of its model, then for work that is exponential with Kingman's mean
    (1961), then for its own batch. A model in several partitions is their mixture by rate.
    What is unserved is in time for nobody.
    """
    surfaces = {one.model: surface(profiles[one.model]) for one in demand if one.model in profiles}
    by_name = {one.model: one for one in demand}
    replicas: dict[str, int] = {}
    for slot in (s for p in plan.partitions for s in p.slots):
        replicas[slot.model] = replicas.get(slot.model, 0) + 1
    places: dict[str, list[_Place]] = {}
    for partition in plan.partitions:
        if partition.gpu in gpus:
            for slot in partition.slots:
                place = _place(slot, partition, surfaces, by_name, replicas[slot.model])
                places.setdefault(slot.model, []).append(place)
    return {
        model: _mixture(found, by_name[model], plan.unserved_rps.get(model, 0.0))
        for model, found in places.items()
    }


def _place(
    slot: Slot,
    partition: Partition,
    surfaces: Mapping[str, Surface],
    demand: Mapping[str, Demand],
    replicas: int,
) -> _Place:
    runs_ms = {
        s.model: surfaces[s.model].latency_ms(s.batch, partition.share_pct) for s in partition.slots
    }
    busy = weight = 0.0
    for other in partition.slots:
        row_ms = runs_ms[other.model] / other.batch
        load = other.rate_rps * row_ms / 1000.0
        busy += load
        weight += load * row_ms * demand[other.model].cv ** 2
    longest_ms = partition.duty_ms or max(runs_ms.values())
    waiting_ms = inf if busy >= 1 else weight / (2 * (1 - busy))
    return _Place(slot.rate_rps, runs_ms[slot.model], longest_ms / replicas, waiting_ms)


def _mixture(places: Sequence[_Place], demand: Demand, unserved_rps: float) -> Expectation:
    total_rps = sum(place.rate_rps for place in places)
    weights = [place.rate_rps / total_rps if total_rps > 0 else 1 / len(places) for place in places]
    p99_ms = max(_quantile_ms(place) for place in places)
    within = sum(
        weight * _within(place, demand.slo_ms)
        for weight, place in zip(weights, places, strict=True)
    )
    served = total_rps / (total_rps + unserved_rps) if total_rps + unserved_rps > 0 else 1.0
    return Expectation(p99_ms, within * served)


def _quantile_ms(place: _Place) -> float:
    return place.own_ms + place.blocked_ms + place.waiting_ms * log(1 / _TAIL)


def _within(place: _Place, slo_ms: float) -> float:
    slack_ms = slo_ms - place.own_ms - place.blocked_ms
    if slack_ms < 0 or place.waiting_ms == inf:
        return 0.0
    return 1.0 - exp(-slack_ms / place.waiting_ms) if place.waiting_ms > 0 else 1.0
