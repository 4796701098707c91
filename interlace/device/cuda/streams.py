"""A GPU without partitions: one process, a plain stream for each, as Triton's instances have."""

from __future__ import annotations

from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.device.cuda.discovery import DiscoveredGpu
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.lanes import Lanes
from interlace.device.cuda.settings import AHEAD_MS, CudaSettings, model_memory_bytes, only_gpu
from interlace.device.cuda.stream_lanes import StreamLanes

LANES: Final = "interlace.device.cuda.streams:make_lanes"
#: A share says only how many may stand side by side: up to eight.
SHARES_PCT: Final = (12, 25, 50, 100)

TRAITS: Final = frozenset(
    {
        Trait.MULTI_MODEL,
        Trait.SHARED_WEIGHTS,
        Trait.INPUT_POOL,
        Trait.GATHER_DMA,
        Trait.SLOW_START,
        Trait.LIGHT_SYNC,
        Trait.GRAPHS,
        Trait.OVERLAPPED_REORGANISATION,
    }
)


def lacking(found: DiscoveredGpu) -> str:
    """Why a GPU cannot be used so; empty if it can."""
    if found.mig:
        return f"GPU {found.number} has MIG switched on: its instances are devices of their own"
    return ""


def streams_gpu(found: DiscoveredGpu, gpu_id: str) -> Gpu:
    """The accelerator that such a device is; its profiles are kept apart from those of parts."""
    memory_bytes = model_memory_bytes(found.memory_bytes)
    return Gpu(
        gpu_id,
        f"{found.kind}-streams",
        found.sms,
        memory_bytes,
        SHARES_PCT,
        TRAITS,
        ahead_ms=AHEAD_MS,
    )


def streams_settings(found: DiscoveredGpu, gpu_id: str) -> CudaSettings:
    """The settings of such a device."""
    return CudaSettings(
        streams_gpu(found, gpu_id), found.uuid, LANES, environment=only_gpu(found.uuid)
    )


def make_lanes(driver: Driver) -> Lanes:
    """In the process that holds the GPU."""
    return StreamLanes(driver)
