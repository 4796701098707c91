"""Which GPUs of this machine read each other's memory over NVLink, and how fast: NVML is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

#: What copies reach of the links' own rate: 376 to 380 GB/s of 478 between two H100 (nccl #1264).
_REACHED: Final = 0.8


class NvLink(NamedTuple):
    """A GPU whose memory can be read, and at what rate."""

    uuid: str
    bytes_per_ms: float


def nvlinks(nvml: Any, handles: Sequence[Any], uuids: Sequence[str]) -> list[tuple[NvLink, ...]]:
    """Of each GPU in order; of one that NVML knows nothing about, none."""
    return [
        tuple(
            NvLink(uuid, rate)
            for other, uuid in zip(handles, uuids, strict=True)
            if uuid != own and (rate := _bytes_per_ms(nvml, handle, other)) > 0.0
        )
        for handle, own in zip(handles, uuids, strict=True)
    ]


def _bytes_per_ms(nvml: Any, here: Any, there: Any) -> float:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(here, there, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status != nvml.NVML_P2P_STATUS_OK:
            return 0.0
        fields = (nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
        found = nvml.nvmlDeviceGetFieldValues(here, fields)
        if any(one.nvmlReturn for one in found):
            return 0.0
        count, mb_per_s = (one.value.uiVal for one in found)
        bus = nvml.nvmlDeviceGetPciInfo(there).busId
        ends = [_remote(nvml, here, number) for number in range(count)]
    except nvml.NVMLError:
        return 0.0
    # Links end at the other GPU itself, or at a switch, which has all of them go there.
    rate: float = (ends.count(bus) or count) * mb_per_s * 1e3 * _REACHED
    return rate


def _remote(nvml: Any, here: Any, link: int) -> Any:
    try:
        return nvml.nvmlDeviceGetNvLinkRemotePciInfo(here, link).busId
    except nvml.NVMLError:
        return None
