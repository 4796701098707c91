"""Which sets of atoms to carve: a ladder of sizes beforehand, and one for each partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from interlace.device.cuda.partitions.atoms import Atoms, indices, span


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


def choose(
    atoms: Atoms,
    share_pct: int,
    staying: Sequence[int] = (),
    leaving: Sequence[int] = (),
    ready: Collection[int] = (),
) -> int:
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
    stays, leaves = atoms.holders(staying), atoms.holders(leaving)
    by_holders = sorted(range(atoms.count), key=lambda one: (stays[one], leaves[one]))
    candidates = {sum(1 << one for one in by_holders[:size])}
    candidates.update(span(first, size) for first in range(atoms.count - size + 1))
    candidates.update(mask for mask in ready if _fits(atoms, mask, size))
    taken = _union(staying)
    rungs = [rung.mask for rung in ladder(atoms) if not rung.mask & taken]

    def cost(mask: int) -> tuple[int, int, bool, int, int]:
        blocked = sum(1 for rung in rungs if rung & mask)
        return _overlap(mask, stays), _overlap(mask, leaves), mask not in ready, blocked, mask

    return min(candidates, key=cost)


def _fits(atoms: Atoms, mask: int, size: int) -> bool:
    return mask < 1 << atoms.count and mask.bit_count() == size


def _overlap(mask: int, holders: Sequence[int]) -> int:
    return sum(holders[one] for one in indices(mask))


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
