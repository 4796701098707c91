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
from typing import Final

from interlace.device.spawner import Birth

_CODE: Final = (
    "import json, sys; descriptor, owner, name, sys.path[:] = json.loads(sys.argv[1]); "
    "from interlace.device.cuda.worker.main import main; main(descriptor, owner, name)"
)
#: Read by CUDA once, when it starts. More hardware queues, so that lanes do not wait for each
#: other's launches; every kernel loaded at once, since a first launch during a capture fails; small
#: cuBLAS workspaces, as there is one per stream (cuBLAS documentation, cublasSetWorkspace).
BEFORE_CUDA: Final[Mapping[str, str]] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_MODULE_LOADING": "EAGER",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "ORT_DISABLE_TELEMETRY": "1",
}
_CLOSE_S: Final = 5.0


class Launcher:
    """Starts processes and hears of their end. ``environment`` is added to this process's own.

    With ``alone`` one starts when the one before it has ended: a GPU's memory is given back when
    its process is gone, not when it dies. No fork server: CUDA reads the environment when it
    starts, and a context does not survive a fork.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        environment: Mapping[str, str],
        alone: bool = False,
    ) -> None:
        self._loop = loop
        self._environment = {**BEFORE_CUDA, **environment}
        self._alone = alone
        self._running: dict[int, tuple[subprocess.Popen[bytes], int, Birth]] = {}
        self._waiting: deque[tuple[str, int, Birth]] = deque()

    def spawn(self, name: str, descriptor: int, birth: Birth) -> None:
        """Start a process that talks over ``descriptor``, which it inherits."""
        if self._alone and self._running:
            # Who asked may give up meanwhile, and close it.
            self._waiting.append((name, os.dup(descriptor), birth))
        else:
            self._start(name, descriptor, birth)

    def _start(self, name: str, descriptor: int, birth: Birth) -> None:
        argument = json.dumps([descriptor, os.getpid(), name, sys.path])
        settings = [f"{key}={value}" for key, value in self._environment.items()]
        try:
            process = subprocess.Popen(
                ["env", *settings, sys.executable, "-c", _CODE, argument],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            watch = os.pidfd_open(process.pid)
        except OSError:
            self._loop.call_soon(birth.exited, None)
            return
        self._running[process.pid] = (process, watch, birth)
        self._loop.add_reader(watch, self._ended, process.pid)
        self._loop.call_soon(partial(birth.forked, process.pid))

    def close(self) -> None:
        """Wait a little for processes whose sockets are closed, and kill those that stay."""
        while self._waiting:
            os.close(self._waiting.popleft()[1])
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
        process, watch, birth = self._running.pop(pid)
        self._loop.remove_reader(watch)
        os.close(watch)
        birth.exited(process.wait())
        if self._waiting and not (self._alone and self._running):
            name, descriptor, birth = self._waiting.popleft()
            self._start(name, descriptor, birth)
            os.close(descriptor)
