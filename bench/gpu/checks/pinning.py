"""How fast host memory is page-locked: allocated so, or touched first and registered."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from bench.gpu.bench import Bench
from bench.gpu.lanes import rate_gbs
from bench.gpu.rows import Row, attempt, seen
from interlace.device.cuda.driver.api import Driver

_BYTES: Final = 2 << 30
_DRY_BYTES: Final = 1 << 16
_THREADS: Final = (1, 4, 16)


def rows(bench: Bench) -> Iterator[Row]:
    """2 GiB by ``cuMemHostAlloc``, and by ``mmap``, touching by threads, and registering."""
    nbytes = bench.size(_BYTES, _DRY_BYTES)
    with bench.driver() as driver:
        yield from attempt("allocated", lambda: _allocated(driver, nbytes))
        for threads in bench.size(_THREADS, (1,)):
            for huge in (False, True):
                words = f"{threads} threads{', huge pages' if huge else ''}"
                yield from attempt(
                    words, lambda t=threads, h=huge: _registered(driver, nbytes, t, h)
                )


def _allocated(driver: Driver, nbytes: int) -> Iterable[Row]:
    began_s = time.perf_counter()
    made = driver.allocate_mapped(nbytes)
    ms = (time.perf_counter() - began_s) * 1000.0
    driver.free_mapped(made)
    yield seen("page-locked when allocated", f"{rate_gbs(nbytes, ms):.2f} GB/s", ms=ms)


def _registered(driver: Driver, nbytes: int, threads: int, huge: bool) -> Iterable[Row]:
    memory = mmap.mmap(-1, nbytes)
    if huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, np.uint8)
    address = int(view.ctypes.data)
    began_s = time.perf_counter()
    _touch(address, nbytes, threads)
    touched_s = time.perf_counter()
    made = driver.register(address, nbytes)
    ended_s = time.perf_counter()
    driver.unregister(made)
    touch_ms, lock_ms = (touched_s - began_s) * 1000.0, (ended_s - touched_s) * 1000.0
    yield seen(
        f"touched by {threads} threads{', huge pages' if huge else ''}, then registered",
        f"{rate_gbs(nbytes, touch_ms + lock_ms):.2f} GB/s; registering alone "
        f"{rate_gbs(nbytes, lock_ms):.2f}",
        touch_ms=touch_ms, lock_ms=lock_ms, threads=threads, huge=huge,
    )  # fmt: skip
    del view
    memory.close()


def _touch(address: int, nbytes: int, threads: int) -> None:
    """Write all of it, a piece a thread; ``memset`` runs without Python's lock."""
    piece = -(-nbytes // threads // os.sysconf("SC_PAGESIZE")) * os.sysconf("SC_PAGESIZE")
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, nbytes, piece):
            pool.submit(ctypes.memset, address + begin, 0, min(piece, nbytes - begin))
