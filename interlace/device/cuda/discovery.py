"""Which GPUs this machine has, asked through NVML: nothing here initialises CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Final, NamedTuple

#: CUDA cores of an SM, which NVML counts instead of SMs (CUDA C programming guide, by capability).
_CORES_PER_SM: Final = {7: 64, 8: 64, 9: 128, 10: 128, 11: 128, 12: 128}
_CORES_PER_SM_BY: Final = {(6, 0): 64, (6, 1): 128, (8, 6): 128, (8, 7): 128, (8, 9): 128}
_GIB: Final = 1 << 30


class MigInstance(NamedTuple):
    """A MIG instance that an operator has made."""

    uuid: str
    kind: str
    sms: int
    memory_bytes: int


class DiscoveredGpu(NamedTuple):
    """One GPU. ``driver`` is the CUDA version that the driver speaks, 13000 for 13.0.

    With MIG on, only its ``instances`` can be used; ``mig`` without any is a GPU of no use.
    """

    number: int
    uuid: str
    kind: str
    sms: int
    memory_bytes: int
    capability: tuple[int, int]
    driver: int
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()

    @property
    def mig_refusal(self) -> str:
        """Why the GPU cannot be shared as a whole where MIG is on; empty where it is off."""
        why = f"GPU {self.number} has MIG switched on: its instances are devices of their own"
        return why if self.mig else ""


class NoGpuError(Exception):
    """Why there is no GPU to be seen."""


def discover(nvml: Any = None) -> tuple[DiscoveredGpu, ...]:
    """The GPUs of this machine in the order of their bus addresses, at least one.

    ``nvml`` is the module ``pynvml``, or one that does the same.

    Raises:
        NoGpuError: there is none, or no driver, or no way to ask it.
    """
    nvml = nvml or _pynvml()
    with _session(nvml):
        driver = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        count = int(nvml.nvmlDeviceGetCount())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        found = [_found(nvml, index, one, driver) for index, one in enumerate(handles)]
        links = nvlinks(nvml, handles, [one.uuid for one in found])
    if not found:
        raise NoGpuError("the driver sees no GPU")
    return tuple(
        one._replace(nvlinks=() if one.mig else known)
        for one, known in zip(found, links, strict=True)
    )


def kind_of(name: str, memory_bytes: int) -> str:
    """The kind profiles are kept by: model, form and memory in GiB, as one word.

    "NVIDIA H100 80GB HBM3" is ``h100-sxm5-80gb``: boards with that memory name no form, those for
    PCIe do.
    """
    bare = re.sub(r"\b(nvidia|tesla|geforce|graphics|device|\d+\s?gb|hbm\w*)\b", " ", name.lower())
    words = re.findall(r"[a-z0-9]+", re.sub(r"\bmig\b.*", " ", bare))
    if words in (["h100"], ["h200"], ["h20"]):
        words.append("sxm5")
    return "-".join([*(words or ["gpu"]), f"{ceil(memory_bytes / _GIB)}gb"])


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NoGpuError("the package nvidia-ml-py is not installed") from error
    return pynvml


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpuError(f"NVML does not answer: {error}") from error
    try:
        yield
    except nvml.NVMLError as error:
        raise NoGpuError(f"NVML failed: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _found(nvml: Any, index: int, handle: Any, driver: int) -> DiscoveredGpu:
    capability = tuple(map(int, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    kind = kind_of(_text(nvml.nvmlDeviceGetName(handle)), memory_bytes)
    modes = _unless(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    mig = modes is not None and int(modes[0]) == 1
    return DiscoveredGpu(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        kind,
        _sms(nvml, handle, capability),
        memory_bytes,
        (capability[0], capability[1]),
        driver,
        mig,
        tuple(_instances(nvml, handle, kind)) if mig else (),
    )


def _sms(nvml: Any, handle: Any, capability: tuple[int, ...]) -> int:
    cores = int(nvml.nvmlDeviceGetNumGpuCores(handle))
    major, minor = capability[:2]
    per_sm = _CORES_PER_SM_BY.get((major, minor)) or _CORES_PER_SM.get(major)
    if per_sm is None:
        raise NoGpuError(f"a GPU of compute capability {major}.{minor} is not known here")
    return cores // per_sm


def _instances(nvml: Any, handle: Any, kind: str) -> Iterator[MigInstance]:
    for place in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        one = _unless(nvml, lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))  # noqa: B023
        if one is None:
            continue
        sms = int(nvml.nvmlDeviceGetAttributes_v2(one).multiprocessorCount)
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(one).total)
        form = f"{kind}-mig-{sms}sm-{ceil(memory_bytes / _GIB)}gb"
        yield MigInstance(_text(nvml.nvmlDeviceGetUUID(one)), form, sms, memory_bytes)


def _unless(nvml: Any, ask: Callable[[], Any]) -> Any:
    """The answer; ``None`` where this GPU does not have such a thing, or not that many."""
    try:
        return ask()
    except nvml.NVMLError as error:
        absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND)
        if error.value in absent:
            return None
        raise


def _text(answer: str | bytes) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def visible(found: Sequence[DiscoveredGpu], setting: str | None) -> tuple[DiscoveredGpu, ...]:
    """The GPUs that ``setting`` names, in its order; all of them if it is ``None``.

    Names are numbers in the order of bus addresses, beginnings of ``GPU-...`` ids, or ``MIG-...``
    ids of instances. The first name that fits no GPU, and all names after it, are ignored (CUDA C
    programming guide, environment variables).
    """
    if setting is None:
        return tuple(found)
    shown: dict[int, DiscoveredGpu] = {}
    for name in setting.split(","):
        one = next(_named(found, name.strip()), None)
        if one is None:
            break
        if (before := shown.get(one.number)) is not None:
            more = tuple(each for each in one.instances if each not in before.instances)
            one = before._replace(instances=before.instances + more)
        shown[one.number] = one
    return tuple(shown.values())


def _named(found: Sequence[DiscoveredGpu], name: str) -> Iterator[DiscoveredGpu]:
    for one in found:
        if (name.isdecimal() and int(name) == one.number) or (
            name.startswith("GPU-") and one.uuid.startswith(name)
        ):
            yield one
        elif name.startswith("MIG-") and one.mig:
            chosen = tuple(each for each in one.instances if each.uuid == name)
            if chosen:
                yield one._replace(instances=chosen)


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
