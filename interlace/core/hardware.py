"""Accelerators, the shares they can be cut into, and what they can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Trait(Enum):
    """What a device can do. A device declares its traits, the engine plans with them."""

    MULTI_MODEL = "multi-model"
    SHARED_WEIGHTS = "shared-weights"
    INPUT_POOL = "input-pool"
    GATHER_DMA = "gather-dma"
    LIGHT_SYNC = "light-sync"
    OVERLAPPED_REORGANISATION = "overlapped-reorganisation"
    HOST_ACCESS = "host-access"
    PEER_LOAD = "peer-load"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator: a GPU, or the cores of this machine standing in for its SMs.

    ``units`` are SMs or cores. ``shares_pct`` are the legal partition sizes in ascending order, the
    last one 100; geometry belongs to the kind, planners ask it.
    """

    id: str
    kind: str
    units: int
    memory_bytes: int
    shares_pct: tuple[int, ...]
    traits: frozenset[Trait] = frozenset()


@dataclass(frozen=True, slots=True)
class Link:
    """A path between two memories, with its bandwidth."""

    source: str
    target: str
    bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every accelerator under one engine."""

    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...] = ()

    def gpu(self, gpu_id: str) -> Gpu:
        """The accelerator of that id.

        Raises:
            KeyError: no such accelerator.
        """
        for gpu in self.gpus:
            if gpu.id == gpu_id:
                return gpu
        raise KeyError(gpu_id)
