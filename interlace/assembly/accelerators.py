"""`--device`: which accelerators a command uses, and what it takes to make them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from interlace.control.model_preparer import Describe
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.user_errors import InputError, UserError
from interlace.device.base import Device
from interlace.device.cpu.describe import Describer
from interlace.device.cpu.device import CpuDevice, cpu_gpu
from interlace.device.cpu.settings import WORKER, CpuSettings
from interlace.device.cuda import mps, streams
from interlace.device.cuda.device import CudaDevice
from interlace.device.cuda.discovery import DiscoveredGpu, NoGpuError, discover, visible
from interlace.device.cuda.green_contexts import atoms as green
from interlace.device.cuda.green_contexts.atoms import AskAtoms, ask_atoms, common_atoms
from interlace.device.cuda.settings import CudaSettings, with_peers
from interlace.device.process.spawner import ForkServerSpawner
from interlace.formats.weights_folder import temporary_folder
from interlace.shm.arena import ArenaMap

_log = logging.getLogger(__name__)


class WeightsFolder:
    """A folder that can be written to: the wanted one, else one that goes with the command.

    ``folder`` is ``None`` where neither is to be had, or none is wanted: then each worker keeps
    weights of its own.
    """

    def __init__(self, wanted: str | None) -> None:
        self._ends = ExitStack()
        self.folder = wanted
        if wanted is None:
            return
        try:
            Path(wanted).mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".probe-", dir=wanted):
                pass
        except OSError as error:
            self.folder = self._instead()
            place = self.folder or "the memory of each worker"
            _log.warning(
                "%s: %s; profiles and weights are not kept, weights lie in %s; --profiles names "
                "another folder",
                wanted,
                error.strerror or error,
                place,
            )

    def close(self) -> None:
        """Give the folder back if it was made for this run."""
        self._ends.close()

    def _instead(self) -> str | None:
        try:
            return self._ends.enter_context(temporary_folder("weights"))
        except OSError:
            return None


NAMES: Final = ("auto", "cpu", "green", "mps", "streams")


class DeviceGroup:
    """The accelerators of one command, all of one kind, and who opens models for them."""

    def __init__(
        self, devices: Sequence[Device], describe: Describe, close: Callable[[], None]
    ) -> None:
        self.all = tuple(devices)
        self.describe = describe  #: what a model says of itself, as ``Describer.describe``
        self._close = close

    def register(self, model: Model) -> None:
        """Make a deployment key known to all of them."""
        for device in self.all:
            device.register(model)

    def forget(self, key: str) -> None:
        """Drop what ``register`` kept."""
        for device in self.all:
            device.forget(key)

    def on_away(self, away: Callable[[str], None], back: Callable[[str], None]) -> None:
        """Tell when one of several failed, and when it is back. A single one has no stand-in."""
        for device in self.all if len(self.all) > 1 else ():
            if isinstance(device, CudaDevice):
                name = device.gpu.id
                device.on_away(partial(away, name), partial(back, name))

    def close(self) -> None:
        """Stop everything."""
        self._close()
        for device in self.all:
            device.close()


@dataclass(frozen=True, slots=True)
class Accelerators:
    """What was chosen; nothing is started. ``settings`` are those of GPUs, none for cores."""

    cpu: CpuSettings
    settings: tuple[CudaSettings, ...] = ()
    begin: Callable[[], None] = lambda: None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The accelerators as planners see them."""
        return tuple(one.gpu for one in self.settings) or (cpu_gpu(self.cpu),)

    def with_weights(self, weights_bytes: int, host_bytes: int | None = None) -> Accelerators:
        """Return a copy with ``weights_bytes`` reserved for swapping.

        On cores the page cache keeps at most ``host_bytes`` of the weight files.

        Raises:
            UserError: the accelerators have too little memory.
        """
        if weights_bytes and any(one.private for one in self.settings):
            raise InputError(
                "--memory with --device mps: weights come and go within one process; take green"
            )
        if host_bytes is not None and self.settings:
            raise InputError(
                "--host-memory bounds the page cache's weights: only --device cpu has any"
            )
        least = min(gpu.memory_bytes for gpu in self.gpus)
        if weights_bytes >= least:
            raise InputError(
                f"--memory of {weights_bytes / 1e6:.0f} MB: {self.gpus[0].id} has "
                f"{least / 1e6:.0f} MB, of which requests and what stays need some, too"
            )
        settings = tuple(
            replace(one, gpu=replace(one.gpu, weights_bytes=weights_bytes))
            for one in (with_peers(self.settings) if weights_bytes else self.settings)
        )
        cores = replace(self.cpu, weights_bytes=weights_bytes, host_weights_bytes=host_bytes)
        cpu = self.cpu if settings else cores
        return replace(self, cpu=cpu, settings=settings)

    def make(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        inputs: Sequence[int],
        files_dir: str = "",
    ) -> DeviceGroup:
        """The devices. ``inputs`` are the arenas that requests will lie in.

        ``files_dir`` is where models lie whose files come with a load.

        Raises:
            UserError: something that they need is missing on this machine.
        """
        weights = WeightsFolder(self.cpu.weights_dir)
        cpu = replace(self.cpu, weights_dir=weights.folder, files_dir=files_dir)
        if not self.settings:
            cores = CpuDevice(loop, arenas, cpu)
            return DeviceGroup([cores], cores.describe, weights.close)
        self.begin()
        made = [replace(one, inputs=tuple(inputs)) for one in self.settings]
        spawner = ForkServerSpawner(loop, WORKER)
        describer = Describer(loop, arenas, spawner, cpu)

        def close() -> None:
            describer.close()
            spawner.close()
            weights.close()

        return DeviceGroup(
            [CudaDevice(loop, arenas, one) for one in made], describer.describe, close
        )


def choose_accelerators(
    device: str,
    cpu: CpuSettings,
    gpus: str | None = None,
    nvml: Any = None,
    ask: AskAtoms = ask_atoms,
) -> Accelerators:
    """The accelerators that ``--device`` names; ``cpu`` are this machine's cores.

    ``auto`` takes what a GPU can do best, and the cores where there is none. ``gpus`` as in
    ``visible``, ``nvml`` as in ``discover``. ``ask`` says into which atoms the driver cuts GPUs.

    Raises:
        UserError: there is no such device, and why.
    """
    if device not in NAMES:
        raise InputError(f"--device {device}: expected one of {', '.join(NAMES)}")
    if device == "cpu":
        return Accelerators(cpu)
    try:
        there = discover(nvml)
        found = visible(there, gpus)
        if not found:
            names = ", ".join(f"{one.number} ({one.uuid})" for one in there)
            raise NoGpuError(f"--gpus (or CUDA_VISIBLE_DEVICES) '{gpus}' names none of {names}")
    except NoGpuError as error:
        if device == "auto":
            return Accelerators(cpu)
        raise UserError(f"--device {device}: there is no GPU to use: {error}") from None
    return _on_gpus(device, cpu, found, ask)


def _on_gpus(
    device: str, cpu: CpuSettings, found: Sequence[DiscoveredGpu], ask: AskAtoms
) -> Accelerators:
    controls: list[mps.MpsControl] = []
    settings: list[CudaSettings] = []
    for gpu in found:
        if gpu.mig and device == "auto":
            settings += _instances(gpu, len(settings))
            continue
        name = f"gpu{len(settings)}"
        match _mechanism(device, gpu):
            case "green":
                settings.append(green.green_settings(gpu, name))
            case "mps":
                controls.append(mps.MpsControl(gpu.uuid))
                settings.append(mps.mps_settings(gpu, name, controls[-1]))
            case _:
                settings.append(streams.streams_settings(gpu, name))
    kinds = sorted({one.gpu.kind for one in settings})
    if len(kinds) > 1:
        raise UserError(
            f"--device {device}: accelerators of several kinds ({', '.join(kinds)}); one server "
            f"uses one kind: name those of one kind with --gpus"
        )
    if any(one.lanes == green.LANES for one in settings):
        settings = _as_cut(device, settings, found, ask)
    return Accelerators(cpu, tuple(settings), partial(_start, controls))


def _as_cut(
    device: str, settings: Sequence[CudaSettings], found: Sequence[DiscoveredGpu], ask: AskAtoms
) -> list[CudaSettings]:
    """The same, with the shares that the driver can make: it alone knows how a GPU is built."""
    asked = ask([one.uuid for one in settings])
    if not asked:
        return list(settings)
    try:
        atoms = common_atoms(asked)
    except ValueError as error:
        raise UserError(f"--device {device}: {error}; name some with --gpus") from None
    pairs = zip(settings, found, strict=True)
    return [replace(one, gpu=green.green_gpu(gpu, one.gpu.id, atoms)) for one, gpu in pairs]


def _mechanism(device: str, gpu: DiscoveredGpu) -> str:
    if device == "auto":
        return "streams" if green.lacking(gpu) else "green"
    lacks = {"green": green.lacking, "mps": mps.lacking, "streams": streams.lacking}[device](gpu)
    if lacks:
        raise UserError(f"--device {device}: {lacks}")
    return device


def _instances(gpu: DiscoveredGpu, first: int) -> list[CudaSettings]:
    try:
        made = streams.mig_instances(gpu)
    except ValueError as error:
        raise UserError(f"--device auto: {error}") from None
    return [streams.mig_settings(one, f"gpu{place}") for place, one in enumerate(made, first)]


def _start(controls: Sequence[mps.MpsControl]) -> None:
    for control in controls:
        try:
            control.start()
        except mps.MpsError as error:
            for started in controls:
                with suppress(mps.MpsError):
                    started.stop()
            raise UserError(f"--device mps: {error}") from None
