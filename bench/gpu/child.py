"""A part in a process of its own: rows come as they are found, and time is up when it is up."""

import contextlib
import faulthandler
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from bench.gpu.bench import Bench, Entry
from bench.gpu.forking import PRELOAD
from bench.gpu.rows import Row, failed, flow
from bench.harness import processes
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.launcher import BEFORE_CUDA

#: What the devices' own processes start CUDA with.
ENVIRONMENT: Final[Mapping[str, str]] = BEFORE_CUDA
#: A part is told to end a little before it is ended.
_GRACE: Final = 0.9
_TRACE_S: Final = 0.5
_PRELOAD: Final = ["numpy", "torch", "transformers", "bench.gpu.child", *PRELOAD[1:]]


@dataclass(frozen=True, slots=True)
class Errand:
    """What a child is to do. ``backend`` and ``entry`` are "module:function"."""

    entry: str
    backend: str
    dry: bool
    out: Path
    log: Path
    seconds: float
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    models: tuple[str, ...] = ()
    owner: int = field(default_factory=os.getpid)  #: the part ends when this process does


class Children:
    """Makes a process for each errand, forked from one that has imported what is slow to import.

    That one never starts CUDA, so every child starts it afresh: what one part breaks, no other
    part sees.
    """

    def __init__(self) -> None:
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOAD)
        self._running: set[int] = set()

    def warm(self) -> float:
        """Wait until imports are done, so that no part pays for them; returns the seconds."""
        began_s = time.monotonic()
        child = self._context.Process(target=_nothing)
        child.start()
        child.join()
        return time.monotonic() - began_s

    def close(self) -> None:
        """End what a run that was cut off at the worst moment has left running."""
        for pid in tuple(self._running):
            _end(pid)

    def rows(self, errand: Errand) -> Generator[Row]:
        """The part's rows as they come; the last one says so if it crashed or was ended."""
        ours, theirs = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_run, args=(errand, theirs))
        child.start()
        assert child.pid is not None
        self._running.add(child.pid)
        theirs.close()
        end_s = time.monotonic() + errand.seconds
        try:
            yield from _received(ours, end_s, errand)
            child.join(max(0.1, end_s - time.monotonic()))
            if child.exitcode not in (0, None):
                yield failed("the part's process", f"ended with {_status(child.exitcode)}")
        finally:
            _end(child.pid)
            self._running.discard(child.pid)
            child.join(5.0)
            ours.close()


def _received(pipe: Connection, end_s: float, errand: Errand) -> Iterator[Row]:
    while True:
        if not pipe.poll(max(0.0, end_s - time.monotonic())):
            words = f"did not end within {errand.seconds:g} s; where it stood: {errand.log.name}"
            yield failed("the part's process", words)
            return
        try:
            yield pipe.recv()
        except EOFError:
            return


def _status(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def _end(pid: int) -> None:
    """Ask where it stands, then end it and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        if Path(f"/proc/{pid}").exists():  # it may outlive who forked it
            os.kill(pid, signal.SIGUSR1)
            time.sleep(_TRACE_S)
            _kill_descendants(pid)
        os.killpg(pid, signal.SIGKILL)


def _kill_descendants(pid: int) -> None:
    for one in processes.descendants([pid]):  # a GPU's process is in a session of its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _end_with(owner: int) -> None:
    """End this process and all that it started when the run has ended, by whatever signal."""
    with contextlib.suppress(ProcessLookupError):
        watch = os.pidfd_open(owner)
        select.select([watch], [], [])
    _kill_descendants(os.getpid())
    os.killpg(os.getpid(), signal.SIGKILL)


def _nothing() -> None:
    """What a process does that is only to be made."""


def _run(errand: Errand, pipe: Connection) -> None:
    os.setsid()
    # It has the address of the server that forked it; ``multiprocessing`` would start another one,
    # which imports everything again.
    vars(forkserver._forkserver)["ensure_running"] = resource_tracker.ensure_running
    threading.Thread(target=_end_with, args=(errand.owner,), daemon=True).start()
    _log_to(errand.log)
    os.environ.update(errand.environment)
    tempfile.tempdir = None  # it may have been asked for before
    end_s = time.monotonic() + _GRACE * errand.seconds
    try:
        backend = partial(_backend, errand.backend)
        bench = Bench(errand.dry, errand.out, end_s, backend, errand.models)
        entry: Entry = _named(errand.entry)
        found = entry(bench)
        for row in flow(found) if isinstance(found, AsyncIterator) else found:
            pipe.send(row.dry() if errand.dry else row)
    except BaseException as error:
        pipe.send(failed("the part", error))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # libraries' own endings may hang once a GPU has failed


def _backend(name: str) -> CudaBackend:
    made: CudaBackend = _named(name)()
    return made


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _log_to(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
