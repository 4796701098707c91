"""A GPU as a ``Device``. It lives in the main process, which never touches CUDA."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.core.messages import (
    CancelRun,
    CopyInputs,
    CreatePartition,
    Evict,
    Failure,
    Fetch,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.device.base import Done
from interlace.device.cuda.process import GpuProcess
from interlace.device.cuda.processes import GpuProcesses, ProcessLauncher
from interlace.device.cuda.settings import CudaSettings
from interlace.shm.arena import ArenaMap

_log = logging.getLogger(__name__)

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0

OnStarted = Callable[[Failure | None], None]


class Restarter:
    """Reports that an accelerator is away, restarts its process, and reports that it is back.

    ``start`` starts the process and says how that ended. A GPU that does not come back is tried
    again, less and less often.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[OnStarted], object],
        away: Callable[[], None],
        back: Callable[[], None],
        gpu: str,
    ) -> None:
        self._loop = loop
        self._start = start
        self._away = away
        self._back = back
        self._gpu = gpu
        self._pause_s = _FIRST_S
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False

    def begin(self) -> None:
        """The process is gone."""
        if self._gone:
            return
        self._gone = True
        self._pause_s = _FIRST_S
        self._away()
        self._timer = self._loop.call_later(0.0, self._try)

    def close(self) -> None:
        """Try no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _try(self) -> None:
        try:
            self._start(self._started)
        except OSError as error:
            self._started(Failure(str(error)))

    def _started(self, failure: Failure | None) -> None:
        if failure is None:
            self._gone = False
            self._back()
            return
        text = "%s does not come back: %s; tried again in %g s"
        _log.warning(text, self._gpu, failure.detail, self._pause_s)
        self._timer = self._loop.call_later(self._pause_s, self._try)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)


class CudaDevice:
    """A ``Device`` whose partitions are lanes of one process, or of a process each.

    A process that dies, by a fault of the GPU or by force, takes its partitions with it: what was
    in flight fails, each partition is lost, and the next ``CreatePartition`` starts a new process.
    One event loop owns this. Outputs are read through ``arenas``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        settings: CudaSettings,
        launcher: ProcessLauncher | None = None,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._models: dict[str, Model] = {}
        self.processes = GpuProcesses(loop, arenas, settings, launcher, self._dead)
        self._on_lost: Callable[[PartitionLost], None] = lambda lost: None
        self._absence: Restarter | None = None
        self._open = True

    @property
    def gpu(self) -> Gpu:
        return self._settings.gpu

    def register(self, model: Model) -> None:
        self._models[model.key] = model

    def forget(self, key: str) -> None:
        self._models.pop(key, None)
        for process in self.processes.running:
            process.forget(key)

    def cancel_run(self, work: CancelRun) -> None:
        """Nobody's code runs here."""

    def cancel_fetch(self, model: str) -> None:
        for process in self.processes.running:
            process.cancel_fetch(model)

    def on_event(self, lost: Callable[[PartitionLost], None]) -> None:
        self._on_lost = lost

    def on_away(self, away: Callable[[], None], back: Callable[[], None]) -> None:
        """From now on, tell when the GPU failed, before all else, and when it can serve again.

        For fleets: others serve meanwhile, and it is started again without being asked. Devices
        with a process for each partition lose and mend those one by one instead.
        """
        if not self._settings.private:
            start = partial(self.processes.home, 100)
            self._absence = Restarter(self._loop, start, away, back, self.gpu.id)

    def do(self, work: Work, done: Done) -> None:
        try:
            self._do(work, done)
        except (ValueError, OSError) as error:
            self._loop.call_soon(done, WorkFinished(work, failure=Failure(str(error))))

    def free(self, batch: int) -> None:
        self.processes.free(batch)

    def workers(self) -> dict[str, int]:
        """Process id of each partition's process, once it is there."""
        running = self.processes.running
        pairs = ((name, one.link.pid) for one in running for name in one.partitions)
        return {name: pid for name, pid in pairs if pid is not None}

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._absence is not None:
            self._absence.close()
        self.processes.close()
        self._settings.at_close()

    # -------------------------------------------------------------------------- one piece of work

    def _do(self, work: Work, done: Done) -> None:
        if not self._open:
            raise ValueError(f"{self.gpu.id} is closed")
        if isinstance(work, CreatePartition):
            self._carve(work, done)
            return
        if isinstance(work, Evict):
            self._shared(f"weights of {work.model}").move(work, done)
            return
        if isinstance(work, CopyInputs):
            self._stage(work, done)
            return
        process = self.processes.of(work.partition)
        if process is None:
            raise ValueError(f"no partition '{work.partition}' on {self.gpu.id}")
        if work.partition in process.releasing:
            raise ValueError(f"partition '{work.partition}' is being released")
        match work:
            case Run():
                process.run(work, done)
            case Fetch():
                process.move(work, done)
            case Load(model=key):
                if key not in self._models:
                    raise ValueError(f"model {key} is not registered with {self.gpu.id}")
                process.load(work, self._models[key], done)
            case Unload():
                process.unload(work, done)
            case ReleasePartition():
                process.release(work, done)

    def _carve(self, work: CreatePartition, done: Done) -> None:
        if work.share_pct not in self.gpu.shares_pct:
            raise ValueError(
                f"a share of {work.share_pct} %: expected one of {list(self.gpu.shares_pct)}"
            )
        if self.processes.of(work.partition) is not None:
            raise ValueError(f"partition '{work.partition}' of {self.gpu.id} exists already")
        self.processes.home(work.share_pct).carve(work, done)

    def _stage(self, work: CopyInputs, done: Done) -> None:
        if Trait.INPUT_POOL not in self.gpu.traits:
            raise ValueError(f"{self.gpu.id} has no ring for the inputs of {work.request.model}")
        self._shared(f"inputs of {work.request.model}").stage(work, done)

    def _shared(self, what: str) -> GpuProcess:
        """The process of all partitions."""
        running = self.processes.running
        if not running or self._settings.private:
            raise ValueError(f"{self.gpu.id} has no process for {what}")
        return running[0]

    # --------------------------------------------------------------------------------------- death

    def _dead(self, process: GpuProcess, cause: str) -> None:
        """Report everything that ended with a process.

        Partitions without open work are reported lost first, so that no retry is sent to them.
        """
        if self._absence is not None and self._open and process.ready:
            self._absence.begin()
        lost = process.partitions - process.releasing if process.ready else set()
        verdicts = process.faults.verdicts()
        for name in sorted(lost - verdicts.keys()):
            self._lose(name, cause)
        for name, tells in verdicts.items():
            for tell in tells:
                tell()
            if name in lost:
                self._lose(name, cause)
        process.buried()

    def _lose(self, partition: str, cause: str) -> None:
        if self._open:
            self._on_lost(PartitionLost(self.gpu.id, partition, cause))
