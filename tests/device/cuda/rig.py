"""CUDA devices of each mechanism on the fake driver, in real processes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from interlace.core.model import Model
from interlace.core.request import Request
from interlace.device.cuda.device import CudaDevice
from interlace.device.cuda.discovery import DiscoveredGpu, MigInstance
from interlace.device.cuda.green_contexts.atoms import green_settings
from interlace.device.cuda.mps import MpsControl, mps_settings
from interlace.device.cuda.settings import CudaSettings
from interlace.device.cuda.streams import mig_settings, streams_settings
from tests.contracts.stands import RigStand
from tests.device.cpu.rig import Rig
from tests.device.cuda import torch_models
from tests.device.cuda.backends import clients_sms
from tests.device.cuda.warm import WarmLauncher

BACKEND = "tests.device.cuda.backends:whole"
CLIENT = "tests.device.cuda.backends:client"
FOUND = DiscoveredGpu(0, "GPU-fake-0", "fake-h100", 132, 80 << 30, (9, 0), 13000)
INSTANCE = MigInstance("MIG-fake-0", "fake-h100-mig-16sm-10gb", 16, 10 << 30)


class _NoControl(MpsControl):
    """MPS without a daemon: there is no GPU to share."""

    def environment(self) -> Mapping[str, str]:
        return {}


#: The settings of each mechanism, on the one GPU of the fake.
MECHANISMS: dict[str, Callable[[], CudaSettings]] = {
    "green": lambda: green_settings(FOUND, "gpu0"),
    "streams": lambda: streams_settings(FOUND, "gpu0"),
    "mps": lambda: mps_settings(FOUND, "gpu0", _NoControl("GPU-fake-0")),
    "mig": lambda: mig_settings(INSTANCE, "gpu0"),
}


def cuda_rig(mechanism: str, warm: bool = True, **changes: object) -> Rig:
    """A device of a mechanism on the fake driver; ``changes`` are those of its settings.

    Its processes are forked if ``warm``, else started as they are in service.
    """

    return Rig(lambda rig: device_on(rig, mechanism, "gpu0", warm, **changes))


def device_on(
    rig: Rig, mechanism: str, name: str, warm: bool = True, **changes: object
) -> CudaDevice:
    """A device on the loop and the arena of a rig."""
    plain = MECHANISMS[mechanism]()
    values: dict[str, object] = {
        "gpu": replace(plain.gpu, id=name),
        "backend": CLIENT if mechanism == "mps" else BACKEND,
        "opener": torch_models.OPENER,
        "inputs": (rig.arena.number,),
        "arena_bytes": 1 << 24,
        **changes,
    }
    chosen = replace(plain, **values)  # type: ignore[arg-type]
    launcher = WarmLauncher(rig.loop) if warm else None
    return CudaDevice(rig.loop, rig.arenas, chosen, launcher)


class CudaStand(RigStand):
    """Processes on the fake driver, and real time; ``changes`` are those of the settings."""

    def __init__(self, mechanism: str, **changes: object) -> None:
        self._mechanism = mechanism
        super().__init__(cuda_rig(mechanism, **changes))  # type: ignore[arg-type]

    def request(self, known: Model, rows: int) -> Request:
        return self._rig.floats(known, *[[1.0, 2.0, 3.0, torch_models.REAL]] * rows)

    def units(self, share_pct: int) -> int:
        """Whole atoms of 8 SMs; of the SMs that MPS leaves, all; all of them on streams."""
        if self._mechanism == "green":
            return 132 if share_pct == 100 else -(-share_pct * 132 // 800) * 8
        return clients_sms(share_pct) if self._mechanism == "mps" else 132

    def die_together(self) -> bool:
        return self._mechanism != "mps"


def stand_of(mechanism: str) -> Callable[[Path], CudaStand]:
    """A stand for the tests of the contract."""
    return lambda folder: CudaStand(mechanism)
