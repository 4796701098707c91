"""A GPU partitioned by green contexts: one process, partitions are sets of its SMs."""

from __future__ import annotations

from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.green_contexts.atoms import ATOM_SMS, Atoms
from interlace.device.cuda.green_contexts.lanes import GreenLanes
from interlace.device.cuda.lanes import Lanes
from interlace.device.cuda.settings import (
    AHEAD_MS,
    SHARED_PROCESS_TRAITS,
    CudaSettings,
    model_memory_bytes,
    only_gpu,
)

LANES: Final = "interlace.device.cuda.green_contexts.gpu:make_lanes"
#: Green contexts came with CUDA 12.4; atoms of 8 SMs are those of compute capability 9.0.
DRIVER: Final = 12040
CAPABILITY: Final = (9, 0)


def lacking(found: DiscoveredGpu) -> str:
    """Why a GPU cannot be partitioned so; empty if it can."""
    if found.mig:
        return found.mig_refusal
    if found.capability < CAPABILITY:
        have = ".".join(map(str, found.capability))
        return f"GPU {found.number} has compute capability {have}; green contexts are used from 9.0"
    if found.driver < DRIVER:
        return (
            f"the driver speaks CUDA {found.driver // 1000}.{found.driver % 1000 // 10}; "
            f"green contexts need 12.4 or newer"
        )
    return ""


def green_gpu(found: DiscoveredGpu, gpu_id: str, atoms: Atoms | None = None) -> Gpu:
    """The accelerator that such a device is, with the atoms that the driver makes of it.

    Without, they are those of a GPU whose parts are of one size, which the driver alone knows.
    """
    atoms = atoms or Atoms(found.sms // ATOM_SMS, ATOM_SMS, found.sms % ATOM_SMS)
    return Gpu(
        gpu_id,
        found.kind,
        found.sms,
        model_memory_bytes(found.memory_bytes),
        atoms.shares_pct,
        SHARED_PROCESS_TRAITS | {Trait.SHARE_AT_LAUNCH},
        blocks=(atoms.count, atoms.atom_sms),
        ahead_ms=AHEAD_MS,
    )


def green_settings(found: DiscoveredGpu, gpu_id: str, atoms: Atoms | None = None) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        green_gpu(found, gpu_id, atoms),
        found.uuid,
        LANES,
        environment=only_gpu(found.uuid),
        nvlinks=found.nvlinks,
    )


def make_lanes(driver: Driver) -> Lanes:
    """In the process that holds the GPU: the ladder of partitions, carved before it serves."""
    lanes = GreenLanes(driver)
    lanes.prepare()
    return lanes
