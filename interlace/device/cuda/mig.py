"""MIG instances, where an operator has made them: each is a device of one partition."""

from __future__ import annotations

from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import Found, Instance
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.partitions.lanes import Lanes
from interlace.device.cuda.partitions.whole_lanes import WholeLanes
from interlace.device.cuda.settings import AHEAD_MS, CudaSettings, for_models, only

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


def instances(found: Found) -> tuple[Instance, ...]:
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


def mig_gpu(instance: Instance, gpu_id: str) -> Gpu:
    """The accelerator that an instance is."""
    memory_bytes = for_models(instance.memory_bytes)
    return Gpu(gpu_id, instance.kind, instance.sms, memory_bytes, (100,), TRAITS, ahead_ms=AHEAD_MS)


def mig_settings(instance: Instance, gpu_id: str) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        mig_gpu(instance, gpu_id), instance.uuid, LANES, environment=only(instance.uuid)
    )


def make_lanes(driver: Driver) -> Lanes:
    """In the process that holds the instance: all of it."""
    return WholeLanes(driver)
