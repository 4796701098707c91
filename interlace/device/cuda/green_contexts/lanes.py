"""Lanes on green contexts: sets of SMs in one process, carved beforehand, changed by choosing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from interlace.device.cuda.driver.api import Atom, CudaError, Driver, GreenContext
from interlace.device.cuda.green_contexts.atoms import Atoms, best_split, indices, span
from interlace.device.cuda.lanes import Lane, Lanes


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
    """Choose the mask for a partition of a share beside the present ones.

    It overlaps ``staying`` masks least, counting each atom once per mask that has it: not at all
    while enough atoms are free. Among such masks it overlaps ``leaving`` masks least. Then one of
    ``ready`` (carved and idle) is preferred if any is as good. Last, as many rungs of the ladder as
    possible stay free, so that the next partitions find room in one piece.

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


class GreenContexts:
    """Green contexts by the mask of their atoms. Several lanes may have one.

    How many a driver grants is not documented: one that no lane has makes room for a new one.
    """

    def __init__(self, driver: Driver, atoms: Atoms, resources: Collection[Atom]) -> None:
        self._driver = driver
        self._atoms = atoms
        self._resources = tuple(resources)
        self._made: dict[int, GreenContext] = {}
        self._used: set[int] = set()  # masks that a lane has had: libraries may have handles there

    @property
    def masks(self) -> Collection[int]:
        """Those that stand."""
        return self._made.keys()

    def prepare(self, masks: Iterable[int]) -> None:
        """Make contexts for masks, until one is refused."""
        try:
            for mask in masks:
                if mask not in self._made:
                    self._made[mask] = self._make(mask)
        except CudaError as error:
            if error.sticky:
                raise

    def of(self, mask: int, held: Collection[int]) -> GreenContext:
        """The context of a mask. One that is not ``held`` makes room for it, best an unused one."""
        if mask not in self._made:
            try:
                self._made[mask] = self._make(mask)
            except CudaError as error:
                idle = [one for one in self._made if one not in held]
                if error.sticky or not idle:
                    raise
                gone = min(idle, key=self._used.__contains__)
                self._driver.destroy_green(self._made.pop(gone))
                self._made[mask] = self._make(mask)
        self._used.add(mask)
        return self._made[mask]

    def close(self) -> None:
        """Destroy them; they have no streams any more. Every step is tried."""
        made, self._made = self._made, {}
        with ExitStack() as steps:
            for green in made.values():
                steps.callback(self._driver.destroy_green, green)

    def _make(self, mask: int) -> GreenContext:
        green = self._driver.green([self._resources[one] for one in indices(mask)])
        wanted = self._atoms.sms(mask)
        if green.sms < wanted:
            self._driver.destroy_green(green)
            raise CudaError(
                "cuGreenCtxCreate",
                "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
                f"asked for {wanted} SMs, got {green.sms}",
            )
        return green


#: Lanes that plans may ask for, one by one.
LANES_MAX: Final = 96
#: Lanes that share no hardware queue: there are 32 (CUDA_DEVICE_MAX_CONNECTIONS), a lane has two
#: streams, one that serves and one that captures, and the lane aside one.
_LANES_APART: Final = 15


class GreenLanes(Lanes):
    """Each lane is one stream of one green context; the lane of all SMs is a plain stream.

    The SMs are split once. Contexts are unions of atoms, so they may overlap, and the bookkeeping
    of who has which atom is ours: the driver reserves nothing. Contexts are made beforehand, a
    lane's stream when the lane is first carved.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        split = best_split(driver)
        self.atoms = Atoms.of(split)
        self.contexts = GreenContexts(
            driver, self.atoms, [*split.atoms, *([split.rest] if split.rest else [])]
        )

    @property
    def blocks(self) -> tuple[int, int]:
        return self.atoms.count, self.atoms.atom_sms

    def prepare(self) -> int:
        """Make contexts for the ladder, as many as the driver grants.

        How many fit is not documented, so a refusal only ends it; ``carve`` makes what is missing.
        Returns how many contexts there are.
        """
        masks = (rung.mask for rung in ladder(self.atoms))
        self.contexts.prepare(mask for mask in masks if mask != self.atoms.whole)
        return len(self.contexts.masks)

    def aside(self) -> Lane:
        """On the SMs that no share has if the driver grants them, else on a plain stream."""
        if self._aside is None:
            try:
                self._aside = self._lane(0, 0, self.atoms.rest)
            except CudaError as error:
                if error.sticky or not self.atoms.rest:
                    raise
                self._aside = self._lane(0, 0, 0)
        return self._aside

    def carve(self, name: str, share_pct: int, leaving: Collection[str] = ()) -> Lane:
        """A lane on SMs that nobody else has, as far as there are enough.

        If no context can be made any more, one that stands already is used, overlap or not:
        ``units`` say which SMs it has.
        """
        self._check_new(name)
        mask = choose(self.atoms, share_pct, self._crowd(leaving))
        lane = self._idle_on(mask) or self._make(share_pct, mask, leaving)
        lane.name = name
        return lane

    def close(self) -> None:
        with ExitStack() as steps:  # last in, first out
            steps.callback(self.contexts.close)
            steps.callback(super().close)

    def _crowd(self, leaving: Collection[str]) -> Occupancy:
        used = [lane for lane in self.lanes if lane.name is not None]
        idle = {lane.mask for lane in self._idle()}
        return Occupancy(
            [lane.mask for lane in used if lane.name not in leaving],
            [lane.mask for lane in used if lane.name in leaving],
            idle.union(self.contexts.masks),
        )

    def _idle_on(self, mask: int) -> Lane | None:
        return next((lane for lane in self._idle() if lane.mask == mask), None)

    def _make(self, share_pct: int, mask: int, leaving: Collection[str]) -> Lane:
        """A new lane, or the best on what stands if there can be no new context or stream."""
        try:
            return self._grow(share_pct, mask)
        except CudaError as error:
            other = reuse(self.atoms, share_pct, self._crowd(leaving))
            if error.sticky or other is None:
                raise
            return self._idle_on(other) or self._grow(share_pct, other)

    def _grow(self, share_pct: int, mask: int) -> Lane:
        """A new lane; the newest idle one makes room for it if nothing was captured there."""
        spare = [lane for lane in self._idle() if lane.capture_stream is None]
        if len(self.lanes) >= min(_LANES_APART, LANES_MAX) and spare:
            self.retire(spare.pop())
        try:
            return self._create(share_pct, mask)
        except CudaError as error:
            if error.sticky or not spare:
                raise
        self.retire(spare.pop())
        return self._create(share_pct, mask)

    def _create(self, share_pct: int, mask: int) -> Lane:
        if len(self.lanes) >= LANES_MAX:
            name, detail = "CUDA_ERROR_NOT_PERMITTED", f"there are {LANES_MAX} lanes already"
            raise CudaError("cuGreenCtxStreamCreate", name, detail)
        return self._add(self._lane(self._index(), share_pct, mask))

    def _lane(self, index: int, share_pct: int, mask: int) -> Lane:
        if mask in (0, self.atoms.whole):
            mask = self.atoms.whole
            units = self.atoms.numbers(mask)
            return Lane(index, share_pct, len(units), self._driver.stream(), mask, units=units)
        held = {lane.mask for lane in self.lanes}
        if self._aside is not None:
            held.add(self._aside.mask)
        green = self.contexts.of(mask, held)
        stream = self._driver.stream(green)
        units = self.atoms.numbers(mask)
        return Lane(index, share_pct, green.sms, stream, mask, green=green, units=units)


def make_lanes(driver: Driver) -> Lanes:
    """In the process that holds the GPU: the ladder of partitions, carved before it serves."""
    lanes = GreenLanes(driver)
    lanes.prepare()
    return lanes
