"""Accelerators, the shares they can be cut into, and what they can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from interlace.core.loading import OWN_LINK, HostLinks, HostTier


class Trait(Enum):
    """What a device can do. A device declares its traits, the engine plans with them."""

    INPUT_POOL = "input-pool"
    GATHER_DMA = "gather-dma"
    OVERLAPPED_REORGANISATION = "overlapped-reorganisation"
    HOST_ACCESS = "host-access"
    GRAPHS = "graphs"  #: models run at sizes that are prepared when they are loaded
    SLOW_START = "slow-start"  #: a process takes long to start, and may hold several partitions
    SHARE_AT_LAUNCH = "share-at-launch"  #: partitions may overlap: a launch picks one


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator: a GPU, or the cores of this machine standing in for its SMs.

    ``units`` are SMs or cores. ``shares_pct`` are the legal partition sizes in ascending order, the
    last one 100; geometry belongs to the kind, planners ask it. ``layouts`` are the largest sets
    of shares that may stand side by side, each in ascending order; none means any set that fits.
    ``walls`` are (share, bytes) where a partition's memory is its own, as MIG's is; weights are
    shared by the partitions of one accelerator otherwise. ``blocks`` are the number of blocks that
    it is cut into, and the units of each. Every share below 100 takes whole blocks. Where it is
    (0, 0), a set of shares fits if it adds up to at most 100 %.

    ``ahead_ms`` is how long before the predicted end of a running batch its partition may get the
    next one. That one begins by itself when the other ends; at most one waits so. With 0 the next
    batch is given when the end is known, and the partition is idle until then.

    ``weights_bytes`` of its memory are the budget for weights that are swapped over ``links``; with
    0, loaded weights stay. ``host`` is the host memory that weights of all accelerators come from,
    where it does not hold every model; without it, host memory holds all weights.
    """

    id: str
    kind: str
    units: int
    memory_bytes: int
    shares_pct: tuple[int, ...]
    traits: frozenset[Trait] = frozenset()
    layouts: tuple[tuple[int, ...], ...] = ()
    walls: tuple[tuple[int, int], ...] = ()
    ahead_ms: float = 0.0
    blocks: tuple[int, int] = (0, 0)
    weights_bytes: int = 0
    links: HostLinks = OWN_LINK
    host: HostTier | None = None

    @property
    def link_names(self) -> tuple[str, ...]:
        """Which link the own one and each peer's is; its own unless they are shared."""
        peers = range(1, self.links.peers + 1)
        return self.links.names or (self.id, *(f"{self.id}~{peer}" for peer in peers))

    @property
    def room(self) -> int:
        """What partitions side by side may take of it together: blocks, or per cent."""
        return self.blocks[0] or 100

    def taken(self, share_pct: int) -> int:
        """What a share takes of ``room``. Percentages of blocks are rounded down."""
        count, size = self.blocks
        if not count or share_pct == 100:
            return self.room if share_pct == 100 else share_pct
        return ceil(share_pct * self.units / (100 * size))

    def fraction(self, share_pct: int) -> float:
        """The part of the accelerator that a share is; of slices, percentages are rounded down."""
        if not self.layouts:
            return share_pct / 100
        return min(1.0, ceil(share_pct * self.units / 100) / self.units)

    def legal(self, shares_pct: Sequence[int]) -> bool:
        """True if partitions of these shares may stand side by side on this accelerator."""
        if any(share not in self.shares_pct for share in shares_pct):
            return False
        if not self.layouts:
            return sum(map(self.taken, shares_pct)) <= self.room
        wanted = Counter(shares_pct)
        return any(wanted <= Counter(layout) for layout in self.layouts)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every accelerator under one engine."""

    gpus: tuple[Gpu, ...]

    @property
    def alike(self) -> bool:
        """Whether accelerators differ in their ids alone."""
        return all(replace(gpu, id=self.gpus[0].id) == self.gpus[0] for gpu in self.gpus)

    def gpu(self, gpu_id: str) -> Gpu:
        """The accelerator of that id.

        Raises:
            KeyError: no such accelerator.
        """
        for gpu in self.gpus:
            if gpu.id == gpu_id:
                return gpu
        raise KeyError(gpu_id)
