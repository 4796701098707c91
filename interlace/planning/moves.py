"""What changes from a plan that stands to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from interlace.core.plan import Partition


class PlanMoves(NamedTuple):
    """Partitions that stay, that move to another accelerator, that appear, and that go.

    One stays if its accelerator, share and models do; batches and rates may change, which costs
    nothing.
    """

    stay: int
    move: int
    appear: int
    go: int

    def sentence(self) -> str:
        """The counts in words."""
        return (
            f"partitions of the current plan: {self.stay} stay, {self.move} move, "
            f"{self.appear} appear, {self.go} go"
        )


def moves(before: Iterable[Partition], after: Iterable[Partition]) -> PlanMoves:
    """What becomes of the partitions of ``before`` when ``after`` takes their place."""
    old, new = Counter(map(_place, before)), Counter(map(_place, after))
    gone, come = old - new, new - old
    left, fresh = Counter[object](), Counter[object]()
    for one, count in gone.items():
        left[one[1:]] += count
    for one, count in come.items():
        fresh[one[1:]] += count
    moved = (left & fresh).total()
    return PlanMoves((old & new).total(), moved, fresh.total() - moved, left.total() - moved)


def _place(part: Partition) -> tuple[str, int, frozenset[str]]:
    return part.gpu, part.share_pct, frozenset(slot.model for slot in part.slots)
