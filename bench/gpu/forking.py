"""GPU processes forked from one that has imported what is slow to import."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final

from interlace.device.cuda.launcher import LaunchSpec, ProcessLauncher, RunningProcess

#: Not onnxruntime, which starts a thread when it is imported.
PRELOAD: Final = (
    "torch",
    "interlace.device.cuda.worker.main",
    "interlace.device.cuda.models.loaded",
)


class ForkLauncher(ProcessLauncher):
    """Forks where ``ProcessLauncher`` starts an interpreter: a tenth of a second instead of many.

    The fork server is that of ``multiprocessing``: in a process that was forked from one itself, it
    is that one, with what it has imported; else one that imports ``preload`` when it is first used.
    CUDA must not have been started in it, as its contexts do not survive a fork; if it has, a fresh
    interpreter takes the new process's place. Each order's settings are made before CUDA starts.
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
    if cuda_started(Path("/proc/self/fd")):
        code = (
            "import sys; sys.path[:] = sys.argv[4:]; from bench.gpu.forking import serve; "
            "serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))"
        )
        os.set_inheritable(number, True)
        words = [sys.executable, "-c", code, str(number), name, str(owner), *sys.path]
        os.execv(sys.executable, words)
    serve(number, name, owner)


def serve(descriptor: int, name: str, owner: int) -> None:
    """Be the GPU's process, until ``owner`` is gone."""
    from interlace.device.cuda.worker.main import main

    threading.Thread(target=_end_with, args=(owner,), name="owner", daemon=True).start()
    main(descriptor, os.getppid(), name)


def _end_with(owner: int) -> None:
    """Its parent is the fork server, whose end would tell nothing; and a GPU may hang."""
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(owner)
        select.select([watch], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def cuda_started(descriptors: Path) -> bool:
    """Whether CUDA has been started in a process, or one that it was forked from.

    ``descriptors`` is the process's folder of them: the driver opens the GPU's device files.
    """
    for one in descriptors.iterdir():
        with suppress(OSError):  # closed meanwhile
            if os.readlink(one).startswith("/dev/nvidia"):
                return True
    return False


class _Descriptor:
    """A file descriptor on its way to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _rebuilt, (DupFd(self._number),)


def _rebuilt(duplicate: Any) -> Any:
    return duplicate
