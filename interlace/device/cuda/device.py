"""A GPU as a device: the main process's side, which never touches CUDA."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.core.messages import (
    Carve,
    Failure,
    Finished,
    Load,
    Lost,
    Release,
    Run,
    Stage,
    Unload,
    Work,
)
from interlace.core.model import Model
from interlace.device.base import Done
from interlace.device.cuda.launcher import Launcher
from interlace.device.cuda.process import GpuProcess
from interlace.device.cuda.settings import CudaSettings
from interlace.device.cuda.worker.wire import ForgetInputs, GpuSetup, KeeperSetup
from interlace.shm.arena import Arena, ArenaMap

_WHOLE: Final = 100


class CudaDevice:
    """A ``Device`` whose partitions are lanes of one process, or of a process each.

    A process that dies, by a fault of the GPU or by force, takes its partitions with it: what was
    in flight fails, each partition is told as lost, and the next ``Carve`` starts a new process.
    One event loop owns this. Outputs are read through ``arenas``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        settings: CudaSettings,
        launcher: Launcher | None = None,
    ) -> None:
        self._loop = loop
        self._arenas = arenas
        self._settings = settings
        self._models: dict[str, Model] = {}
        self._processes: list[GpuProcess] = []
        self._retired: list[GpuProcess] = []  # dead, and read until the last reply is delivered
        self.launcher = launcher or Launcher(loop)
        self._keeper: GpuProcess | None = None
        self._folder = TemporaryDirectory(prefix="interlace-") if settings.private else None
        self._on_lost: Callable[[Lost], None] = lambda lost: None
        self._open = True

    @property
    def gpu(self) -> Gpu:
        return self._settings.gpu

    def register(self, model: Model) -> None:
        self._models[model.key] = model

    def forget(self, key: str) -> None:
        self._models.pop(key, None)
        for process in self._processes:
            process.link.tell(ForgetInputs(key))

    def on_lost(self, lost: Callable[[Lost], None]) -> None:
        self._on_lost = lost

    def do(self, work: Work, done: Done) -> None:
        try:
            self._do(work, done)
        except (ValueError, OSError) as error:
            self._loop.call_soon(done, Finished(work, failure=Failure(str(error))))

    def free(self, batch: int) -> None:
        for process in self._processes:
            if batch in process.held:
                process.free(batch)
                return
        for process in self._retired:
            if batch in process.held:
                process.held.discard(batch)
                self._dispose(process)
                return

    def workers(self) -> dict[str, int]:
        """Process id of each partition's process, once it is there."""
        pairs = ((name, one.link.pid) for one in self._processes for name in one.partitions)
        return {name: pid for name, pid in pairs if pid is not None}

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for process in [*self._processes, *([self._keeper] if self._keeper else [])]:
            process.link.close("the device is closed", kill=False)
        self.launcher.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._settings.at_close()

    # -------------------------------------------------------------------------- one piece of work

    def _do(self, work: Work, done: Done) -> None:
        if not self._open:
            raise ValueError(f"{self.gpu.id} is closed")
        if isinstance(work, Carve):
            self._carve(work, done)
            return
        if isinstance(work, Stage):
            self._stage(work, done)
            return
        process = self._process(work.partition)
        if work.partition in process.releasing:
            raise ValueError(f"partition '{work.partition}' is being released")
        match work:
            case Run():
                process.run(work, done)
            case Load(model=key):
                if key not in self._models:
                    raise ValueError(f"model {key} is not registered with {self.gpu.id}")
                process.load(work, self._models[key], done)
            case Unload():
                process.unload(work, done)
            case Release():
                process.release(work, done)

    def _stage(self, work: Stage, done: Done) -> None:
        if Trait.INPUT_POOL not in self.gpu.traits or not self._processes:
            raise ValueError(f"{self.gpu.id} has no ring for the inputs of {work.request.model}")
        self._processes[0].stage(work, done)

    def _process(self, partition: str) -> GpuProcess:
        for process in self._processes:
            if partition in process.partitions:
                return process
        raise ValueError(f"no partition '{partition}' on {self.gpu.id}")

    def _carve(self, work: Carve, done: Done) -> None:
        if work.share_pct not in self.gpu.shares_pct:
            raise ValueError(
                f"a share of {work.share_pct} %: expected one of {list(self.gpu.shares_pct)}"
            )
        if any(work.partition in process.partitions for process in self._processes):
            raise ValueError(f"partition '{work.partition}' of {self.gpu.id} exists already")
        self._home(work.share_pct).carve(work, done)

    def _home(self, share_pct: int) -> GpuProcess:
        """The process for a new partition; started now if it is not there.

        Raises:
            OSError: no memory or file descriptor is left.
        """
        if self._processes and not self._settings.private:
            return self._processes[0]
        settings = self._settings
        lender = self._lender()
        arena = Arena.create(settings.arena_bytes)
        setup = GpuSetup(
            settings.uuid,
            settings.backend,
            settings.lanes,
            settings.opener,
            settings.completion,
            os.getpid(),
            arena.number,
            settings.inputs,
            settings.patience_s,
            lender,
        )
        process = GpuProcess(self._loop, setup, arena, settings, self._dead)
        self._arenas.add(arena)
        self._processes.append(process)
        try:
            process.start(self.launcher.spawner(settings.environment(share_pct)))
        except OSError:
            self._drop(process)
            raise
        return process

    def _lender(self) -> str:
        """The socket of the process that keeps weights for all others, which is started now.

        Raises:
            OSError: no file descriptor is left.
        """
        if self._folder is None:
            return ""
        path = f"{self._folder.name}/weights"
        if self._keeper is None:
            settings = self._settings
            Path(path).unlink(missing_ok=True)
            setup = KeeperSetup(
                settings.uuid, settings.backend, settings.lanes, settings.opener, path
            )
            self._keeper = GpuProcess(self._loop, setup, None, settings, self._dead)
            self._keeper.start(self.launcher.spawner(settings.environment(_WHOLE)))
        return path

    # --------------------------------------------------------------------------------------- death

    def _dead(self, process: GpuProcess, cause: str) -> None:
        if process is self._keeper:
            self._keeper = None
            self.launcher.wait_for_all()
            self._take_along(cause)  # it takes the weights with it
            return
        if process not in self._processes:
            return
        lost = [name for name in process.partitions if name not in process.releasing]
        self._drop(process)
        if process.broken or not self._settings.private:
            self.launcher.wait_for_all()
        if process.broken:
            self._take_along(cause)
        process.buried()
        if self._open and process.ready:
            for name in lost:
                self._on_lost(Lost(self.gpu.id, name, cause))

    def _take_along(self, cause: str) -> None:
        """A fault of the GPU is reported to all clients of MPS (MPS documentation, 2.3.3).

        Their server takes no new ones before all are gone, so they are ended at once.
        """
        others = [*self._processes, *([self._keeper] if self._keeper else [])]
        for other in others:
            other.fall(f"another process on {self.gpu.id} had a fault: {cause}")

    def _drop(self, process: GpuProcess) -> None:
        self._processes.remove(process)
        self._retired.append(process)
        self._dispose(process)

    def _dispose(self, process: GpuProcess) -> None:
        if process.held:
            return
        self._retired.remove(process)
        if process.arena is not None:
            self._arenas.forget(process.arena.number)
            process.arena.wipe()
            process.arena.close()
