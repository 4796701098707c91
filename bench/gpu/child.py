"""A part in a process of its own: its rows arrive as they are found, and its time is limited."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from bench.gpu import forking
from bench.gpu.bench import Bench, Entry
from bench.gpu.rows import Row, failed, flow
from bench.harness import processes
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.mps import quit_abandoned
from interlace.device.cuda.processes import BEFORE_CUDA

#: What the devices' own processes start CUDA with.
ENVIRONMENT: Final[Mapping[str, str]] = BEFORE_CUDA
#: A part should end after this fraction of its time.
_GRACE: Final = 0.9
#: Without an end of its own, a part says where it stands this long before it is ended.
_TRACE_S: Final = 0.5
#: Imported once for all parts.
PRELOAD: Final = ["numpy", "torch", "transformers", "bench.gpu.child", *forking.PRELOAD[1:]]
_SET_CHILD_SUBREAPER: Final = 36


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

    That one never starts CUDA, so every child starts it afresh: a part that crashes or hangs
    affects no other part.
    """

    def __init__(self) -> None:
        # Processes whose parent is gone become this one's children, and are found and ended.
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._others = {os.getpid()}

    def warm(self) -> float:
        """Wait until imports are done, so that no part pays for them; return the seconds."""
        began_s = time.monotonic()
        child = self._context.Process(target=_nothing)
        child.start()
        child.join()
        self._others |= set(processes.descendants([os.getpid()]))
        return time.monotonic() - began_s

    def end_all(self) -> None:
        """End all that parts have started; a daemon of MPS is asked first."""
        self._kill(spared=b"nvidia-cuda-mps")
        quit_abandoned()
        self._kill()

    def _kill(self, spared: bytes | None = None) -> None:
        for pid in set(processes.descendants([os.getpid()])) - self._others:
            with contextlib.suppress(OSError):  # it is gone
                if spared is None or spared not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def rows(self, errand: Errand) -> Generator[Row]:
        """Yield the part's rows as they come; the last one says so if it crashed or was ended."""
        ours, theirs = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_run, args=(errand, theirs))
        child.start()
        theirs.close()
        end_s = time.monotonic() + errand.seconds
        try:
            with contextlib.suppress(EOFError):
                while ours.poll(max(0.0, end_s - time.monotonic())):
                    yield ours.recv()
                words = f"did not end within {errand.seconds:g} s; stack in {errand.log.name}"
                yield failed("the part's process", words)
                return
            child.join(max(0.1, end_s - time.monotonic()))
            if child.exitcode not in (0, None):
                yield failed("the part's process", f"ended with {child.exitcode}")
        finally:
            child.kill()
            child.join(5.0)
            self.end_all()
            ours.close()


def _nothing() -> None:
    """Do nothing: the process is made for its imports."""


def _run(errand: Errand, pipe: Connection) -> None:
    threading.Thread(target=forking.end_with, args=(errand.owner,), daemon=True).start()
    # It has the address of the server that forked it; ``multiprocessing`` would start another one,
    # which imports everything again.
    vars(forkserver._forkserver)["ensure_running"] = resource_tracker.ensure_running
    _log_to(errand.log)
    faulthandler.dump_traceback_later(max(0.1, errand.seconds - _TRACE_S))
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
