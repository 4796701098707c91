"""What a run of a fleet came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from interlace.fleet.simulation.run import FleetRecord


@dataclass(frozen=True, slots=True)
class LossReport:
    """One loss. ``noticed_ms`` and ``replanned_ms`` count from when the node was lost."""

    node: str
    kind: str
    at_s: float
    noticed_ms: float
    replanned_ms: float


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Figures of one run. ``broken`` requests were not answered within their SLO, for any reason.

    ``retried`` were sent to more than one node, ``moves`` are loads of models.
    """

    requests: int
    offered_rps: float
    goodput_rps: float
    attainment: float
    worst_attainment: float
    broken: int
    outcomes: Mapping[str, int]
    retried: int
    p50_ms: float
    p99_ms: float
    settled_ms: float
    moves: int
    cuts: int
    orders: int
    plans: int
    losses: tuple[LossReport, ...]

    def plain(self) -> dict[str, object]:
        """The report as JSON has it: keys are the names of the fields."""
        return asdict(self)


def fleet_report(record: FleetRecord) -> FleetReport:
    """The figures of one run."""
    seconds = (record.until_ms - record.from_ms) / 1000.0
    sent, kept = Counter[str](), Counter[str]()
    for one in record.requests:
        sent[one.model] += 1
        kept[one.model] += one.in_time
    count, in_time = len(record.requests), kept.total()
    taken_ms = [one.answered_ms - one.arrived_ms for one in record.requests if one.in_time]
    p50_ms, p99_ms = np.percentile(taken_ms, (50, 99)).tolist() if taken_ms else (0.0, 0.0)
    return FleetReport(
        requests=count,
        offered_rps=count / seconds,
        goodput_rps=in_time / seconds,
        attainment=in_time / count if count else 1.0,
        worst_attainment=min((kept[model] / sent[model] for model in sent), default=1.0),
        broken=count - in_time,
        outcomes=dict(Counter(one.outcome.value for one in record.requests)),
        retried=sum(len(one.nodes) > 1 for one in record.requests),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        settled_ms=record.settled_ms,
        moves=record.loads,
        cuts=record.cuts,
        orders=record.orders,
        plans=record.plans,
        losses=tuple(
            LossReport(
                one.loss.node,
                one.loss.kind.value,
                (one.at_ms - record.from_ms) / 1000.0,
                one.noticed_ms - one.at_ms,
                one.replanned_ms - one.at_ms,
            )
            for one in record.losses
        ),
    )
