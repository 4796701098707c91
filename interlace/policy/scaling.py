"""How many accelerators, and when to ask again: as many as there are, Algorithm 2, the fewest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Plan


@dataclass(frozen=True, slots=True)
class FixedFleet:
    """The accelerators there are, whatever is asked."""

    period_ms: float = 1000.0
    weight: float = 0.3
    cool_down_ms: float = 10_000.0
    resolve_ms: float = 0.0
    patience_ms: float = 30_000.0

    def target_rows_per_s(self, seen_rows_per_s: float) -> float:
        return seen_rows_per_s

    def moved(self, seen_rows_per_s: float, planned_rows_per_s: float) -> int:
        return 0

    def __call__(self, plan: Plan, fleet: Fleet) -> Mapping[str, int]:
        return Counter(gpu.kind for gpu in fleet.gpus)


@dataclass(frozen=True, slots=True)
class Algorithm2:
    """gpulet's scaling (section 4.5, Algorithm 2), at the pace of its released code.

    Rates are looked at every 20 s, about what a partition takes to be created (section 5.1). A plan
    has a margin of one half below 125 rows per second, and of a fifth from there on. The margin
    also carries the service until the next look. A rate that rose by 5 % or 10 rows per second, or
    fell by 10 %, asks for a new plan. The packer searches for the fewest accelerators. The weight
    of the newest sample is not published; one half is taken.
    """

    period_ms: float = 20_000.0
    weight: float = 0.5
    cool_down_ms: float = 0.0
    resolve_ms: float = 0.0
    patience_ms: float = 0.0

    def target_rows_per_s(self, seen_rows_per_s: float) -> float:
        return seen_rows_per_s * (1.5 if seen_rows_per_s < 125.0 else 1.2)

    def moved(self, seen_rows_per_s: float, planned_rows_per_s: float) -> int:
        target_rows_per_s = self.target_rows_per_s(seen_rows_per_s)
        if (
            target_rows_per_s > 1.05 * planned_rows_per_s
            or target_rows_per_s > planned_rows_per_s + 10.0
        ):
            return 1
        return -1 if target_rows_per_s < 0.9 * planned_rows_per_s else 0

    def __call__(self, plan: Plan, fleet: Fleet) -> Mapping[str, int]:
        return _used(plan, fleet)


@dataclass(frozen=True, slots=True)
class GrowAndShrink:
    """Ours: grow as soon as rates leave what was planned for, shrink when they stayed lower.

    The target is the measured rate times ``margin``. The plan grows once half of the margin is
    surely gone, by ``sure`` standard deviations of a smoothed Poisson count. It shrinks once the
    target is surely below ``shrink`` of the plan's, for all of ``patience_ms``. The gap between the
    two thresholds is the hysteresis: a rate that stays where it was planned asks for nothing.

    After a jump, planning waits for three samples: by then the smoothed rate with its margin has
    reached the true one. To plan at once would plan for half of the jump, and again later.
    """

    period_ms: float = 1000.0
    weight: float = 0.5
    cool_down_ms: float = 10_000.0
    resolve_ms: float = 2_000.0
    patience_ms: float = 30_000.0
    margin: float = 1.15
    shrink: float = 0.8
    sure: float = 2.0

    def target_rows_per_s(self, seen_rows_per_s: float) -> float:
        return seen_rows_per_s * self.margin

    def moved(self, seen_rows_per_s: float, planned_rows_per_s: float) -> int:
        # The variance of a smoothed rate: weight / (2 - weight) of that of one sample.
        window_s = self.period_ms / 1000.0 * (2.0 - self.weight) / self.weight
        unsure_rows_per_s = self.sure * sqrt(max(planned_rows_per_s, 1.0 / window_s) / window_s)
        if (
            seen_rows_per_s
            > planned_rows_per_s * (1.0 + 1.0 / self.margin) / 2.0 + unsure_rows_per_s
        ):
            return 1
        return (
            -1
            if self.target_rows_per_s(seen_rows_per_s) + unsure_rows_per_s
            < self.shrink * planned_rows_per_s
            else 0
        )

    def __call__(self, plan: Plan, fleet: Fleet) -> Mapping[str, int]:
        return _used(plan, fleet)


def _used(plan: Plan, fleet: Fleet) -> Mapping[str, int]:
    """The accelerators that a plan uses, and one more while it leaves something unserved."""
    used = {partition.gpu for partition in plan.partitions}
    wanted = Counter(gpu.kind for gpu in fleet.gpus if gpu.id in used)
    if plan.underserved and fleet.gpus:
        wanted[fleet.gpus[-1].kind] += 1
    return wanted


fixed: Final = FixedFleet()
algorithm_2: Final = Algorithm2()
grow_and_shrink: Final = GrowAndShrink()
