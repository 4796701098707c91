"""How much batches that run side by side on one accelerator slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Final, Protocol

import msgspec

from interlace.core.profile import LatencyPoint, Profile, Profiles


class CoRunner(msgspec.Struct, frozen=True):
    """A batch that runs in a partition of ``share_pct``."""

    model: str
    batch: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    share_pct: Annotated[int, msgspec.Meta(ge=1, le=100)]


class Interference(Protocol):
    """Factor >= 1 on a batch's latency while ``neighbours`` run on the same accelerator."""

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float: ...


@dataclass(frozen=True, slots=True)
class ConstantFactor:
    """The same slowdown by any neighbour: the baseline of every finer model."""

    factor: float = 1.0

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return self.factor if neighbours else 1.0


#: Batches side by side do not slow each other.
NO_INTERFERENCE: Final = ConstantFactor()


def busy_profiles(profiles: Profiles, interference: Interference) -> dict[str, Profile]:
    """All profiles beside each other, for planners and beliefs that do not know of interference."""
    if interference == NO_INTERFERENCE:
        return dict(profiles)
    known = [one for one in profiles.values() if one.points]
    return {name: slowed_profile(one, interference, known) for name, one in profiles.items()}


def slowed_profile(
    profile: Profile, interference: Interference, neighbours: Sequence[Profile]
) -> Profile:
    """The profile beside busy neighbours.

    Every latency below the whole accelerator is the mean of those beside each of ``neighbours``,
    which runs its largest measured batch in the rest of the accelerator: who runs there changes
    from batch to batch.
    """
    points = dict(profile.points)
    for (batch, share), point in points.items():
        if share < 100 and neighbours:
            runner = CoRunner(profile.model, batch, share)
            rest = [_widest(other, 100 - share) for other in neighbours]
            slower = [interference(runner, [neighbour]) for neighbour in rest]
            points[batch, share] = longer(point, fmean(slower))
    return replace(profile, points=points)


def _widest(profile: Profile, share_pct: int) -> CoRunner:
    """A model's largest measured batch at that share, or at the smallest that was measured."""
    least_pct = min(share for _, share in profile.points)
    return CoRunner(
        profile.model, max(batch for batch, _ in profile.points), max(share_pct, least_pct)
    )


def longer(point: LatencyPoint, factor: float) -> LatencyPoint:
    """The point with every latency multiplied."""
    return replace(
        point,
        median_ms=point.median_ms * factor,
        p95_ms=point.p95_ms * factor,
        p99_ms=point.p99_ms * factor,
    )
