"""Which sets of atoms to carve: a ladder of sizes beforehand, and one for each partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from interlace.device.cuda.green_contexts.atoms import Atoms, indices, span


class Rung(NamedTuple):
    """A partition that can be carved before anybody asks for it."""

    share_pct: int
    mask: int


def ladder(atoms: Atoms) -> tuple[Rung, ...]:
    """The whole GPU, then each smaller size twice: from the first atom on, and up to the last.

    So every pair of sizes that fill the GPU stands disjoint, and any partition can grow or shrink
    where it is. Both of a pair follow each other, for those who carve only the first few.
    """
    rungs = [Rung(100, atoms.whole)]
    count = atoms.count
    shares = {size: share for share, size in atoms.sizes.items() if share < 100}
    if count in shares:
        rungs.append(Rung(shares[count], span(0, count)))
    for size in range(1, count):
        rungs.append(Rung(shares[size], span(0, size)))
        rungs.append(Rung(shares[count - size], span(size, count - size)))
    return tuple(rungs)


class Occupancy(NamedTuple):
    """The masks that stand: those ``staying``, those ``leaving`` soon, those idle and ``ready``."""

    staying: Sequence[int] = ()
    leaving: Sequence[int] = ()
    ready: Collection[int] = ()


def choose(atoms: Atoms, share_pct: int, crowd: Occupancy) -> int:
    """The mask for a partition of a share beside those that stand.

    It overlaps ``staying`` masks least, counting each atom once per mask that has it: not at all
    while enough atoms are free. Among such masks it overlaps those ``leaving`` least, is one of
    ``ready`` (carved and idle) if any is as good, and keeps as many rungs of the ladder free as it
    can, so that the next partitions find room in one piece.

    Raises:
        ValueError: no such share.
    """
    size = atoms.size(share_pct)
    if share_pct == 100:
        return atoms.whole
    stays, leaves = atoms.holders(crowd.staying), atoms.holders(crowd.leaving)
    by_holders = sorted(range(atoms.count), key=lambda one: (stays[one], leaves[one]))
    candidates = {sum(1 << one for one in by_holders[:size])}
    candidates.update(span(first, size) for first in range(atoms.count - size + 1))
    candidates.update(_fitting(atoms, size, crowd.ready))
    return min(candidates, key=_cost(atoms, crowd))


def reuse(atoms: Atoms, share_pct: int, crowd: Occupancy) -> int | None:
    """As ``choose``, from those that are ready alone; ``None`` if none has the size.

    Raises:
        ValueError: no such share.
    """
    size = atoms.size(share_pct)
    if share_pct == 100:
        return atoms.whole if atoms.whole in crowd.ready else None
    return min(_fitting(atoms, size, crowd.ready), key=_cost(atoms, crowd), default=None)


def _fitting(atoms: Atoms, size: int, masks: Collection[int]) -> list[int]:
    return [mask for mask in masks if mask < 1 << atoms.count and mask.bit_count() == size]


def _cost(atoms: Atoms, crowd: Occupancy) -> Callable[[int], tuple[int, int, bool, int, int]]:
    stays, leaves = atoms.holders(crowd.staying), atoms.holders(crowd.leaving)
    taken = reduce(or_, crowd.staying, 0)
    rungs = [rung.mask for rung in ladder(atoms) if not rung.mask & taken]

    def cost(mask: int) -> tuple[int, int, bool, int, int]:
        blocked = sum(1 for rung in rungs if rung & mask)
        fresh = mask not in crowd.ready
        return _overlap(mask, stays), _overlap(mask, leaves), fresh, blocked, mask

    return cost


def _overlap(mask: int, holders: Sequence[int]) -> int:
    return sum(holders[one] for one in indices(mask))
