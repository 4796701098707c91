"""MIG instances, where an operator has made them: each is a device of one partition."""

from __future__ import annotations

from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu, MigInstance
from interlace.device.cuda.settings import (
    AHEAD_MS,
    BASE_TRAITS,
    CudaSettings,
    model_memory_bytes,
    only_gpu,
)
from interlace.device.cuda.streams import ONE_LANE

#: No overlapped reorganisation: the one lane is given up before the next one is made.
_TRAITS: Final = BASE_TRAITS | {Trait.INPUT_POOL}


def instances(found: DiscoveredGpu) -> tuple[MigInstance, ...]:
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


def mig_gpu(instance: MigInstance, gpu_id: str) -> Gpu:
    """The accelerator that an instance is."""
    memory_bytes = model_memory_bytes(instance.memory_bytes)
    return Gpu(
        gpu_id, instance.kind, instance.sms, memory_bytes, (100,), _TRAITS, ahead_ms=AHEAD_MS
    )


def mig_settings(instance: MigInstance, gpu_id: str) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        mig_gpu(instance, gpu_id), instance.uuid, ONE_LANE, environment=only_gpu(instance.uuid)
    )
