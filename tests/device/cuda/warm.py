"""GPU processes for tests, forked from one that has torch loaded: a tenth of a second, not three.

A real one cannot be: CUDA reads the environment when it starts. The fake reads it when it is made.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import Any

from interlace.device.cuda.launcher import Launcher, Order, Process

_PRELOAD = [
    "interlace.device.cuda.worker.main",
    "interlace.device.cuda.completion.blocking_events",
    "tests.device.cuda.fake.backend",
    "tests.device.cuda.models",
]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _become(descriptor: Any, name: str, environment: Mapping[str, str]) -> None:
    from interlace.device.cuda.worker.main import main

    os.environ.update(environment)
    main(descriptor.detach(), os.getppid(), name)


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


class WarmLauncher(Launcher):
    """Forks where the real one starts an interpreter. ``begun`` are all processes ever started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.begun: list[Process] = []

    def begin(self, order: Order) -> Process:
        arguments = (_Descriptor(order.descriptor), order.name, dict(order.environment))
        process = _context().Process(target=_become, args=arguments)
        process.start()
        self.begun.append(_Forked(process))
        return self.begun[-1]


class _Descriptor:
    """A file descriptor on its way to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _rebuilt, (DupFd(self._number),)


def _rebuilt(duplicate: Any) -> Any:
    return duplicate
