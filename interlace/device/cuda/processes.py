"""The processes that hold one GPU: a fresh interpreter each, for all partitions or for one."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from msgspec.structs import replace

from interlace.core.messages import Failure
from interlace.device.cuda.process import GpuProcess, OnStarted
from interlace.device.cuda.settings import CudaSettings
from interlace.device.cuda.worker.wire import GpuSetup
from interlace.device.process.output_arena import HeldBatches
from interlace.device.process.spawner import SpawnCallbacks
from interlace.device.process.wire import ForgetArena
from interlace.shm import children
from interlace.shm.arena import Arena, ArenaMap

_WORKER: Final = "interlace.device.cuda.worker.worker:main"
#: CUDA and torch read these once, when they start. More hardware queues keep lanes from waiting for
#: each other's launches. Kernels are loaded at their first launch: all of torch's take seconds and
#: a gigabyte in each process. A capture that meets a new kernel is tried again. The cuBLAS
#: workspace, 32 MiB a stream, is the larger of the two that torch accepts as deterministic.
BEFORE_CUDA: Final[Mapping[str, str]] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "LAZY",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "ORT_DISABLE_TELEMETRY": "1",
}
_CLOSE_S: Final = 5.0


class LaunchSpec(NamedTuple):
    """A process to be started, with settings besides this process's own environment."""

    name: str
    descriptor: int
    callbacks: SpawnCallbacks
    environment: Mapping[str, str]


class ProcessLauncher:
    """Starts processes and reports their end.

    No fork server, which would have to be kept, with torch in it, for a process or two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[children.RunningProcess, int, SpawnCallbacks]] = {}
        self._leaving: set[int] = set()
        self._waiting: deque[LaunchSpec] = deque()

    def wait_for_all(self) -> None:
        """What is spawned from now on starts when all that run now have ended.

        A GPU's memory is given back, and an MPS server is well again, when processes are gone, not
        when they die.
        """
        self._leaving.update(self._running)

    def spawn(
        self, settings: Mapping[str, str], name: str, descriptor: int, callbacks: SpawnCallbacks
    ) -> None:
        """Start a process with these settings, now or when those that leave are gone."""
        order = LaunchSpec(name, descriptor, callbacks, {**BEFORE_CUDA, **settings})
        if self._leaving:
            # Who asked may give up meanwhile, and close it.
            self._waiting.append(order._replace(descriptor=os.dup(order.descriptor)))
        else:
            self._start(order)

    def begin(self, order: LaunchSpec) -> children.RunningProcess:
        """Start a process now.

        Raises:
            OSError: no process or memory is left.
        """
        arguments, shared = (order.descriptor, os.getpid(), order.name), [order.descriptor]
        return children.start(
            _WORKER, *arguments, environment=order.environment, descriptors=shared
        )

    def _start(self, order: LaunchSpec) -> None:
        callbacks = order.callbacks
        try:
            process = self.begin(order)
            watch = os.pidfd_open(process.pid)
        except OSError:
            self._loop.call_soon(callbacks.exited, None)
            return
        self._running[process.pid] = (process, watch, callbacks)
        self._loop.add_reader(watch, self._ended, process.pid)
        self._loop.call_soon(partial(callbacks.forked, process.pid))

    def close(self) -> None:
        """Wait a little for processes whose sockets are closed, and kill those that stay."""
        while self._waiting:
            os.close(self._waiting.popleft().descriptor)
        for process, watch, _ in self._running.values():
            self._loop.remove_reader(watch)
            os.close(watch)
            children.end(process, _CLOSE_S)
        self._running.clear()

    def _ended(self, pid: int) -> None:
        process, watch, callbacks = self._running.pop(pid)
        self._loop.remove_reader(watch)
        os.close(watch)
        callbacks.exited(process.wait())
        self._leaving.discard(pid)
        while self._waiting and not self._leaving:
            order = self._waiting.popleft()
            self._start(order)
            os.close(order.descriptor)


_WHOLE: Final = 100
#: Processes of one GPU that watch for ends of batches with a core each; the others' watchers rest
#: between looks, which costs that much latency.
_WATCHING_MAX: Final = 4
_REST_US: Final = 20


def _ignore(failure: Failure | None) -> None:
    """Work is sent to a process before it has started, and waits in its socket."""


class GpuProcesses:
    """Started when they are needed, and let go of with care.

    ``on_dead`` is called for each that ended, after it has been taken off these lists.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        settings: CudaSettings,
        launcher: ProcessLauncher | None,
        on_dead: Callable[[GpuProcess, str], None],
    ) -> None:
        self.launcher = launcher or ProcessLauncher(loop)
        self.running: list[GpuProcess] = []
        self._held = HeldBatches(arenas)
        self._loop = loop
        self._arenas = arenas
        arenas.watchers.append(self._forget_arena)
        self._settings = settings
        made_by = settings.uuid, settings.backend, settings.lanes, settings.opener
        self._setup = GpuSetup(*made_by, os.getpid(), choices=settings.choices)
        self._on_dead = on_dead
        self._weight_server: GpuProcess | None = None
        self._folder = TemporaryDirectory(prefix="interlace-") if settings.private else None

    def of(self, partition: str) -> GpuProcess | None:
        """The process that has a partition."""
        return next((one for one in self.running if partition in one.partitions), None)

    def home(self, share_pct: int, on_started: OnStarted = _ignore) -> GpuProcess:
        """The process for a new partition, started if there is none; ``on_started`` is called then.

        Raises:
            OSError: no memory or file descriptor is left.
        """
        if self.running and not self._settings.private:
            return self.running[0]
        settings = self._settings
        lender = self._lender()
        arena = Arena.create(settings.arena_bytes)
        setup = replace(
            self._setup,
            arena=arena.number,
            arenas=settings.inputs,
            patience_s=settings.patience_s,
            lender=lender,
            handle_context=settings.handle_context,
            # The weight server keeps them.
            keep_bytes=0 if settings.private else settings.keep_bytes,
            rest_us=self._rest_us(),
            weights_bytes=0 if settings.private else settings.gpu.weights_bytes,
            peers=settings.gpu.links.peers,
        )
        process = GpuProcess(self._loop, setup, arena, self._held, settings, self._dead)
        self.running.append(process)
        try:
            process.start(partial(self.launcher.spawn, settings.environment(share_pct)), on_started)
        except OSError:
            self._drop(process)
            raise
        return process

    def free(self, batch: int) -> None:
        """The replies of that batch are delivered; unknown batches pass."""
        self._held.free(batch)

    def close(self) -> None:
        """Let all of them end by themselves, and wait for it a little."""
        self._arenas.watchers.remove(self._forget_arena)
        for process in self._all():
            process.link.close("the device is closed", kill=False)
        self.launcher.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _forget_arena(self, number: int) -> None:
        for process in self.running:
            process.link.tell(ForgetArena(number))

    def _all(self) -> list[GpuProcess]:
        return [*self.running, *([self._weight_server] if self._weight_server else [])]

    def _rest_us(self) -> int:
        """How long the next process's poller rests: of many processes, few may take a core each."""
        watching = [one for one in self.running if not one.rest_us]
        return 0 if len(watching) < _WATCHING_MAX else _REST_US

    def _lender(self) -> str:
        """The socket of the process that keeps weights for all others, which is started now."""
        if self._folder is None:
            return ""
        path = f"{self._folder.name}/weights"
        if self._weight_server is None:
            settings = self._settings
            Path(path).unlink(missing_ok=True)
            setup = replace(self._setup, keep_bytes=settings.keep_bytes, lends=path)
            self._weight_server = GpuProcess(
                self._loop, setup, None, self._held, settings, self._dead
            )
            spawn = partial(self.launcher.spawn, settings.environment(_WHOLE))
            self._weight_server.start(spawn, _ignore)
        return path

    # --------------------------------------------------------------------------------------- death

    def _dead(self, process: GpuProcess, cause: str) -> None:
        if process is self._weight_server:
            self._weight_server = None
            self.launcher.wait_for_all()
            self._take_along(cause)  # it takes the weights with it
            return
        if process not in self.running:
            return
        self._drop(process)
        if process.broken or not self._settings.private:
            self.launcher.wait_for_all()
        if process.broken:
            self._take_along(cause)
        self._on_dead(process, cause)

    def _take_along(self, cause: str) -> None:
        """A fault of the GPU is reported to all clients of MPS (MPS documentation, 2.3.3).

        Their server takes no new ones before all are gone, so they are ended at once.
        """
        for other in self._all():
            other.fall(f"another process on {self._settings.gpu.id} had a fault: {cause}")

    def _drop(self, process: GpuProcess) -> None:
        self.running.remove(process)
        if process.outputs is not None:
            process.outputs.retire()
