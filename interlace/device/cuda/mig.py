"""MIG instances, where an operator has made them: each is a device of one partition."""

from __future__ import annotations

from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu, MigInstance
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.lanes import Lanes
from interlace.device.cuda.settings import AHEAD_MS, CudaSettings, model_memory_bytes, only_gpu
from interlace.device.cuda.whole_lanes import WholeLanes

LANES: Final = "interlace.device.cuda.mig:make_lanes"

#: No overlapped reorganisation: the one lane is given up before the next one is made.
TRAITS: Final = frozenset(
    {
        Trait.MULTI_MODEL,
        Trait.SHARED_WEIGHTS,
        Trait.INPUT_POOL,
        Trait.GATHER_DMA,
        Trait.SLOW_START,
        Trait.LIGHT_SYNC,
    }
)


def instances(found: DiscoveredGpu) -> tuple[MigInstance, ...]:
    """The instances of a GPU.

    Raises:
        ValueError: MIG is on and nobody has made any; making them is the operator's to do.
    """
    if found.mig and not found.instances:
        raise ValueError(
            f"GPU {found.number} has MIG switched on and no instance; make some "
            f"(nvidia-smi mig -cgi ... -C) or switch MIG off"
        )
    return found.instances


def mig_gpu(instance: MigInstance, gpu_id: str) -> Gpu:
    """The accelerator that an instance is."""
    memory_bytes = model_memory_bytes(instance.memory_bytes)
    return Gpu(gpu_id, instance.kind, instance.sms, memory_bytes, (100,), TRAITS, ahead_ms=AHEAD_MS)


def mig_settings(instance: MigInstance, gpu_id: str) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        mig_gpu(instance, gpu_id), instance.uuid, LANES, environment=only_gpu(instance.uuid)
    )


def make_lanes(driver: Driver) -> Lanes:
    """In the process that holds the instance: all of it."""
    return WholeLanes(driver)
