"""GPU processes forked from one that has imported what is slow to import."""

import asyncio
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import Any, Final

from interlace.device.cuda.processes import LaunchSpec, ProcessLauncher
from interlace.shm.children import RunningProcess

#: Not onnxruntime, which starts a thread when it is imported.
PRELOAD: Final = (
    "torch",
    "interlace.device.cuda.worker.worker",
    "interlace.device.cuda.models.loaded",
)


class ForkLauncher(ProcessLauncher):
    """Forks where ``ProcessLauncher`` starts an interpreter: a tenth of a second instead of many.

    The fork server is that of ``multiprocessing``: in a process that was forked from one itself, it
    is that one, with what it has imported; else one that imports ``preload`` when it is first used.
    It never starts CUDA, whose contexts do not survive a fork. Each order's settings are made
    before CUDA starts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, preload: Sequence[str] = PRELOAD) -> None:
        super().__init__(loop)
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))

    def begin(self, order: LaunchSpec) -> RunningProcess:
        what = (_Descriptor(order.descriptor), order.name, dict(order.environment), os.getpid())
        process = self._context.Process(target=_become, args=what)
        process.start()
        return _Forked(process)


class _Forked:
    """A process of the fork server, as ``subprocess`` has one."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _become(descriptor: Any, name: str, environment: Mapping[str, str], owner: int) -> None:
    number = descriptor.detach()
    os.environ.update(environment)
    from interlace.device.cuda.worker.worker import main

    threading.Thread(target=end_with, args=(owner,), name="owner", daemon=True).start()
    main(number, os.getppid(), name)


def end_with(owner: int) -> None:
    """Its parent is the fork server, whose end would tell nothing; and a GPU may hang."""
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(owner)
        select.select([watch], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


class _Descriptor:
    """A file descriptor on its way to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _rebuilt, (DupFd(self._number),)


def _rebuilt(duplicate: Any) -> Any:
    return duplicate
