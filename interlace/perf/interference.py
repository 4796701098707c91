"""How much batches that run side by side on one accelerator slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from interlace.core.profile import LatencyPoint, Profile


class CoRunner(NamedTuple):
    """A batch that runs in a partition of ``share_pct``."""

    model: str
    batch: int
    share_pct: int


class Interference(Protocol):
    """Factor >= 1 on a batch's latency while ``neighbours`` run on the same accelerator."""

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantFactor:
    """The same slowdown by any neighbour: the baseline of every finer model."""

    factor: float = 1.0

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return self.factor if neighbours else 1.0


def slowed(profile: Profile, factor: float) -> Profile:
    """The profile beside busy neighbours: every latency below the whole accelerator ``factor`` up.

    The constant factor once more, for planners that know of no interference.
    """
    if factor == 1.0:
        return profile
    points = {
        (batch, share): point if share >= 100 else _times(point, factor)
        for (batch, share), point in profile.points.items()
    }
    return replace(profile, points=points)


def _times(point: LatencyPoint, factor: float) -> LatencyPoint:
    return replace(
        point,
        median_ms=point.median_ms * factor,
        p95_ms=point.p95_ms * factor,
        p99_ms=point.p99_ms * factor,
    )
