"""Tries that may break the GPU's context: in processes of their own, so that a crash costs one.

What holds together shares a process, since CUDA starts for seconds; after anything that is refused
the next try gets a new one.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.lanes import Lane, Lanes, lanes
from bench.gpu.rows import Row, Verdict, failed, skipped
from interlace.device.cuda.backend.base import CudaBackend, LibraryContext

#: For one try; the first of a process waits for CUDA, torch and our kernels, too, and the first
#: convolution of a machine for a gigabyte of libraries from its disk.
_TRY_S: Final = 45.0
_DRY_TRY_S: Final = 60.0
_NO_TIME: Final = "no time was left for it"


class Opened(NamedTuple):
    """What a try is asked of: a GPU opened in its process, cut once, and a lane of some SMs."""

    bench: Bench
    backend: CudaBackend
    cut: Lanes
    lane: Lane


@dataclass(frozen=True, slots=True)
class Try:
    """One question. A row that is not as expected, or no row at all, ends its process."""

    what: str
    ask: Callable[[Opened], Row]


def tried(bench: Bench, tries: Sequence[Try], context: LibraryContext) -> Iterator[Row]:
    """A row for each try, in their order; libraries make their handles in that context."""
    left = list(tries)
    while left:
        if bench.left_s <= 0:
            yield from (skipped(one.what, _NO_TIME) for one in left)
            return
        for row in _in_one_process(bench, tuple(left), context):
            del left[0]
            yield row


def _in_one_process(bench: Bench, tries: Sequence[Try], context: LibraryContext) -> Iterator[Row]:
    """At least one row: until one is not as expected, or all are."""
    ours, theirs = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_run, args=(bench, tries, context, theirs))
    child.start()
    theirs.close()
    try:
        for one in tries:
            limit_s = min(bench.size(_TRY_S, _DRY_TRY_S), bench.left_s + 1.0)
            row = _received(ours, one, limit_s)
            yield row
            if not _sound(row):
                return
    finally:
        ours.close()
        child.join(0.5)  # closing may hang once a context has failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()


def _received(pipe: Connection, one: Try, limit_s: float) -> Row:
    began_s = time.monotonic()
    if not pipe.poll(limit_s):
        return failed(one.what, f"did not end within {limit_s:.0f} s")
    try:
        row: Row = pipe.recv()
    except EOFError:
        took_s = time.monotonic() - began_s
        return failed(one.what, f"its process ended without a word after {took_s:.1f} s")
    return row


def _sound(row: Row) -> bool:
    return row.verdict in (Verdict.AS_EXPECTED, Verdict.SEEN, Verdict.SKIPPED)


def _run(bench: Bench, tries: Sequence[Try], context: LibraryContext, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)  # the threads of a process do not come along when it is forked
    now = tries[0]
    try:
        with bench.backend(context) as backend, lanes(backend.driver) as cut:
            opened = Opened(bench, backend, cut, cut.first(backend.driver.board.sms // 2))
            for now in tries:
                row = now.ask(opened)
                pipe.send(row)
                if not _sound(row):
                    os._exit(0)  # nothing can be given back
    except BaseException as error:
        pipe.send(failed(now.what, error))
    os._exit(0)
