"""Stand-ins for what lies outside of a server: ``pynvml``, the daemon of MPS, a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from interlace.assembly import accelerators, server
from interlace.assembly.accelerators import Accelerators
from interlace.cli import main, profile
from interlace.device.cpu.settings import CpuSettings
from interlace.device.cuda.green_contexts.atoms import Atoms
from interlace.device.cuda.mps import PROGRAM


@dataclass
class FakeGpu:
    """One GPU, or one MIG instance of it."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-fake-0"
    sms: int = 132
    memory_bytes: int = 85_520_809_984
    capability: tuple[int, int] = (9, 0)
    mig: bool | None = False  #: ``None``: it does not know MIG
    links: Sequence[str] = ()  #: where its NVLinks end: uuids, or names of switches
    instances: Sequence[FakeGpu | None] = field(default_factory=tuple)


class FakeNvml:
    """Raises the error of its own that the real one would."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NOT_FOUND = 6
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *gpus: FakeGpu, driver: int = 13000, absent: bool = False) -> None:
        self._gpus = gpus
        self._driver = driver
        self._absent = absent
        self.open = 0

    def nvmlInit(self) -> None:
        if self._absent:
            raise self.NVMLError(9)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self._gpus[index]

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> bytes:
        return gpu.uuid.encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.memory_bytes)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetNumGpuCores(self, gpu: FakeGpu) -> int:
        return gpu.sms * {7: 64, 8: 64}.get(gpu.capability[0], 128)

    def nvmlDeviceGetP2PStatus(self, gpu: FakeGpu, other: FakeGpu, kind: int) -> int:
        ends = {one.uuid for one in self._gpus}
        near = other.uuid in gpu.links or any(end not in ends for end in gpu.links)
        return 0 if near and other.links else 5

    def nvmlDeviceGetFieldValues(
        self, gpu: FakeGpu, fields: Sequence[int]
    ) -> list[SimpleNamespace]:
        known = {90: 26_562, 91: len(gpu.links)}
        values = (SimpleNamespace(uiVal=known[one]) for one in fields)
        return [SimpleNamespace(nvmlReturn=0, value=one) for one in values]

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu.uuid.encode())

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu.links[link].encode())

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.mig is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(gpu.mig), int(gpu.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, place: int) -> FakeGpu:
        found = gpu.instances[place] if place < len(gpu.instances) else None
        if found is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceGetAttributes_v2(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=gpu.sms)


_CODE = """#!{python}
import os, pathlib, sys, time
pipe = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
assert pipe.is_dir() and pathlib.Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
said = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read().strip()
with open({log!r}, "a") as log:
    print(said, os.environ.get("CUDA_VISIBLE_DEVICES", "-"), file=log)
if said == "-d" and {stays_s}:
    child = os.fork()
    if child:
        pathlib.Path({daemon!r}).write_text(str(child))
        sys.exit({code})
    time.sleep({stays_s})
sys.exit({code})
"""


def control_program(folder: Path, code: int = 0, stays_s: float = 0.0) -> Path:
    """Put the program, which ends with ``code``, in a folder; the file it writes to.

    It leaves a process behind for ``stays_s``, as the real one does, with its number in ``daemon``.
    """
    program, log = folder / PROGRAM, folder / "told"
    told = {"log": str(log), "code": code, "stays_s": stays_s, "daemon": str(folder / "daemon")}
    program.write_text(_CODE.format(python=sys.executable, **told))
    program.chmod(0o755)
    return log


SMS = 16
SHARES_PCT = (50, 100)  #: so that profiles take no time


def _choose(device: str, cpu: CpuSettings, gpus: str | None) -> Accelerators:
    nvml = FakeNvml(FakeGpu(sms=SMS))
    chosen = accelerators.choose_accelerators(
        device, cpu, gpus, nvml, lambda uuids: [Atoms(SMS // 8, 8)]
    )
    made = [
        replace(
            one,
            gpu=replace(one.gpu, shares_pct=SHARES_PCT),
            backend="tests.device.cuda.backends:few_sms",
            arena_bytes=1 << 24,
        )
        for one in chosen.settings
    ]
    return replace(chosen, settings=tuple(made))


def run() -> None:
    """The command line, with another GPU."""
    for module in (server, profile):
        assert hasattr(module, "choose_accelerators")
        module.choose_accelerators = _choose  # type: ignore[attr-defined]
    main.main()
