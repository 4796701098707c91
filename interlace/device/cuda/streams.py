"""A GPU without partitions, whose lanes are plain streams; MIG instances, which have one lane."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu, MigInstance
from interlace.device.cuda.lanes import Lane, Lanes
from interlace.device.cuda.settings import (
    AHEAD_MS,
    BASE_TRAITS,
    SHARED_PROCESS_TRAITS,
    CudaSettings,
    model_memory_bytes,
    only_gpu,
)

LANES: Final = "interlace.device.cuda.streams:StreamLanes"
#: A process that is one partition: a client of MPS, or a MIG instance.
ONE_LANE: Final = "interlace.device.cuda.streams:OneLane"
#: A share says only how many may stand side by side: up to eight.
SHARES_PCT: Final = (12, 25, 50, 100)


def lacking(found: DiscoveredGpu) -> str:
    """Why a GPU cannot be used so; empty if it can."""
    return found.mig_refusal


def streams_settings(found: DiscoveredGpu, gpu_id: str) -> CudaSettings:
    """The settings of such a device; its profiles are kept apart from those of parts."""
    gpu = Gpu(
        gpu_id,
        f"{found.kind}-streams",
        found.sms,
        model_memory_bytes(found.memory_bytes),
        SHARES_PCT,
        SHARED_PROCESS_TRAITS,
        ahead_ms=AHEAD_MS,
    )
    environment, links = only_gpu(found.uuid), found.nvlinks
    return CudaSettings(gpu, found.uuid, LANES, environment=environment, nvlinks=links)


class StreamLanes(Lanes):
    """As many plain streams as there are partitions; a share limits nothing."""

    _most: int | None = None  #: partitions at a time

    def aside(self) -> Lane:
        if self._aside is None:
            self._aside = self._lane(0, 0)
        return self._aside

    def carve(self, name: str, share_pct: int, leaving: Collection[str] = ()) -> Lane:
        if not 0 < share_pct <= 100:
            raise ValueError(f"a share of {share_pct} %: expected one of 1 to 100")
        self._check_new(name)
        idle = self._idle()
        used = len(self.lanes) - len(idle)
        if self._most is not None and used >= self._most:
            raise ValueError(f"partition '{name}': this process has its {self._most} already")
        lane = idle[0] if idle else self._create()
        lane.name, lane.share_pct = name, share_pct
        return lane

    def _create(self) -> Lane:
        return self._add(self._lane(self._index(), 100))

    def _lane(self, index: int, share_pct: int) -> Lane:
        sms = self._driver.board.sms
        return Lane(index, share_pct, sms, self._driver.stream(), units=tuple(range(sms)))


class OneLane(StreamLanes):
    """One lane on all SMs that the process sees: MPS or MIG keeps the others from it."""

    _most = 1


#: No overlapped reorganisation: the one lane is given up before the next one is made.
_TRAITS: Final = BASE_TRAITS | {Trait.INPUT_POOL}


def mig_instances(found: DiscoveredGpu) -> tuple[MigInstance, ...]:
    """The instances of a GPU.

    Raises:
        ValueError: MIG is on without instances, which only an operator makes.
    """
    if found.mig and not found.instances:
        raise ValueError(
            f"GPU {found.number} has MIG switched on and no instance; make some "
            f"(nvidia-smi mig -cgi ... -C) or switch MIG off"
        )
    return found.instances


def mig_settings(instance: MigInstance, gpu_id: str) -> CudaSettings:
    """The settings of such a device."""
    memory_bytes = model_memory_bytes(instance.memory_bytes)
    gpu = Gpu(gpu_id, instance.kind, instance.sms, memory_bytes, (100,), _TRAITS, ahead_ms=AHEAD_MS)
    return CudaSettings(gpu, instance.uuid, ONE_LANE, environment=only_gpu(instance.uuid))
