"""The devices of this GPU by mechanism; without a GPU, the same on the fake driver."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from bench.fidelity.stand import Ground, MakeDevice
from bench.gpu.bench import Bench
from bench.gpu.forking import ForkLauncher
from interlace.core.hardware import Gpu
from interlace.device.cuda import mps, streams
from interlace.device.cuda.backend.base import CudaBackend, LibraryContext, make_backend
from interlace.device.cuda.device import CudaDevice
from interlace.device.cuda.discovery import DiscoveredGpu, NoGpuError, discover, visible
from interlace.device.cuda.green_contexts import atoms as green
from interlace.device.cuda.green_contexts.atoms import Atoms, ask_atoms
from interlace.device.cuda.mps import MpsControl
from interlace.device.cuda.settings import CudaSettings, only_gpu

KINDS: Final = ("green", "mps", "streams")
#: The backend of a dry run: streams run beside each other, as they do on a GPU.
FAKE_BACKEND: Final = "tests.device.cuda.fake.capture:on_threads"
_FAKE: Final = DiscoveredGpu(0, "GPU-fake-0", "fake-h100", 132, 80 << 30, (9, 0), 13000)


def open_backend() -> CudaBackend:
    """A driver, torch and our kernels in this process, on the first GPU.

    Raises:
        CudaError: there is no GPU, or the driver refuses.
    """
    return make_backend("")


def board(bench: Bench) -> DiscoveredGpu:
    """The GPU that is measured: the first that is visible.

    Raises:
        NoGpus: there is none.
    """
    if bench.dry:
        return _FAKE
    shown = visible(discover(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not shown:
        raise NoGpuError("CUDA_VISIBLE_DEVICES hides every GPU of this machine")
    return shown[0]


def lacking(bench: Bench, kind: str) -> str:
    """Why this GPU cannot be parted so, as far as is known; empty if it can."""
    if kind in bench.switches.lacking:
        return bench.switches.lacking[kind]
    found = board(bench)
    if kind == "mps" and not bench.dry and shutil.which(mps.PROGRAM) is None:
        return f"{mps.PROGRAM} is not installed: it comes with the GPU's driver"
    asked = {"green": green.lacking, "mps": mps.lacking}
    return asked.get(kind, streams.lacking)(found)


@cache
def _asked(uuid: str) -> Atoms | None:
    """What the driver says in a process of its own, once in this one."""
    return next(iter(ask_atoms([uuid])), None)


def atoms_of(bench: Bench) -> Atoms | None:
    """Into which groups of SMs the driver cuts this GPU: as `preflight` found, else asked now.

    What `preflight` found of another GPU does not count.
    """
    switches, uuid = bench.switches, board(bench).uuid
    known = switches.atoms if switches.uuid == uuid else None
    return known if known or bench.dry else _asked(uuid)


def green_gpu(bench: Bench) -> Gpu:
    """This GPU as a device of green contexts shows it; nothing is started."""
    return green.green_gpu(board(bench), "gpu0", atoms_of(bench))


def parted(bench: Bench) -> str:
    """The device of the comparisons: partitions of the GPU, or streams where there are none.

    Raises:
        NoGpus: there are neither.
    """
    if not lacking(bench, "green"):
        return "green"
    why = lacking(bench, "streams")
    if why:
        raise NoGpuError(why)
    return "streams"


def maker(
    bench: Bench,
    kind: str,
    context: LibraryContext | None = None,
    keep: bool = False,
) -> MakeDevice:
    """Makes a device of that mechanism.

    Libraries make their handles in ``context``, as `preflight` chose if none is named. With
    ``keep`` models stay open when a trial lets go of them, so that the next one makes graphs at
    most, and every such part takes the variants that the first one chose.
    """
    found = board(bench)
    libraries = context or bench.switches.handle_context

    def make(ground: Ground) -> CudaDevice:
        settings = replace(_settings(bench, kind, found), handle_context=libraries)
        if keep:
            half, choices = found.memory_bytes // 2, str(bench.out / "choices")
            settings = replace(settings, keep_bytes=half, choices=choices)
        settings = replace(settings, inputs=(ground.requests.number,))
        return CudaDevice(ground.loop, ground.arenas, settings, ForkLauncher(ground.loop))

    return make


def _settings(bench: Bench, kind: str, found: DiscoveredGpu) -> CudaSettings:
    made: dict[str, Callable[[], CudaSettings]] = {
        "green": lambda: green.green_settings(found, "gpu0", atoms=atoms_of(bench)),
        "streams": lambda: streams.streams_settings(found, "gpu0"),
        "mps": lambda: mps.mps_settings(found, "gpu0", _control(bench, found)),
        "processes": lambda: CudaSettings(
            mps.mps_gpu(found, "gpu0"),
            found.uuid,
            streams.ONE_LANE,
            private=True,
            environment=only_gpu(found.uuid),
        ),
    }
    settings = made[kind]()
    return replace(settings, backend=FAKE_BACKEND) if bench.dry else settings


class _NoDaemon(MpsControl):
    """Stands for the daemon where there is none."""

    def environment(self) -> dict[str, str]:
        return {}

    def stop(self) -> None:
        return


def _control(bench: Bench, found: DiscoveredGpu) -> MpsControl:
    control = _NoDaemon(found.uuid) if bench.dry else MpsControl(found.uuid)
    if not bench.dry:
        control.start()
    return control
