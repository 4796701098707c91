"""Processes that hold a GPU: a fresh interpreter each, with an environment of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from interlace.device.process.link import ProcessSpawner
from interlace.device.process.spawner import SpawnCallbacks

_CODE: Final = (
    "import json, sys; descriptor, owner, name, sys.path[:] = json.loads(sys.argv[1]); "
    "from interlace.device.cuda.worker.main import main; main(descriptor, owner, name)"
)
#: Read by CUDA and torch once, when they start. More hardware queues, so that lanes do not wait for
#: each other's launches; kernels loaded when they are first launched, since all of torch's take
#: seconds and a gigabyte in each process (a capture that meets a new one is tried again); the
#: larger of the two cuBLAS workspaces that torch takes for deterministic, 32 MiB a stream.
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


class RunningProcess(Protocol):
    """A process that runs, as ``subprocess`` has it."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class ProcessLauncher:
    """Starts processes and reports their end.

    No fork server, which would have to be kept, with torch in it, for a process or two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[RunningProcess, int, SpawnCallbacks]] = {}
        self._leaving: set[int] = set()
        self._waiting: deque[LaunchSpec] = deque()

    def spawner(self, environment: Mapping[str, str]) -> ProcessSpawner:
        """Starts processes with these settings besides this process's own environment."""
        return _Spawner(self, environment)

    def wait_for_all(self) -> None:
        """What is spawned from now on starts when all that run now have ended.

        A GPU's memory is given back, and an MPS server is well again, when processes are gone, not
        when they die.
        """
        self._leaving.update(self._running)

    def spawn(self, order: LaunchSpec) -> None:
        """Start a process, now or when those that leave are gone."""
        if self._leaving:
            # Who asked may give up meanwhile, and close it.
            self._waiting.append(order._replace(descriptor=os.dup(order.descriptor)))
        else:
            self._start(order)

    def begin(self, order: LaunchSpec) -> RunningProcess:
        """Start a process now.

        Raises:
            OSError: no process or memory is left.
        """
        argument = json.dumps([order.descriptor, os.getpid(), order.name, sys.path])
        settings = [f"{key}={value}" for key, value in order.environment.items()]
        return subprocess.Popen(
            ["env", *settings, sys.executable, "-c", _CODE, argument],
            pass_fds=[order.descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)
                continue
            process.kill()
            process.wait()
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


class _Spawner(NamedTuple):
    """``ProcessSpawner`` with an environment."""

    launcher: ProcessLauncher
    environment: Mapping[str, str]

    def spawn(self, name: str, descriptor: int, callbacks: SpawnCallbacks) -> None:
        environment = {**BEFORE_CUDA, **self.environment}
        self.launcher.spawn(LaunchSpec(name, descriptor, callbacks, environment))
