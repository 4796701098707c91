"""Much page-locked memory at once: huge pages, touched by threads, registered in one call."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from interlace.device.cuda.driver.api import Driver, MappedBlock

#: The driver's own allocation touches with one thread: 16 GiB took 7.9 s, so 1.6 (cuDF #23457).
_THREADS: Final = 8
_PART_BYTES: Final = 256 << 20
#: Memory that stays free whatever is touched.
_SPARE_BYTES: Final = 512 << 20
#: A virtual machine's memory may grow while it is used: so long it may take to.
_GROWS_S, _LOOK_S = 10.0, 0.05
_MEMORY_FILE: Final = Path("/proc/meminfo")


def available_bytes() -> int | None:
    """Memory that can be touched without swapping; ``None`` where the kernel does not say."""
    try:
        lines = _MEMORY_FILE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


class TouchedPages:
    """Anonymous memory that the GPU reads in place and copies from; a ``PinnedSource``."""

    def __init__(
        self, driver: Driver, available: Callable[[], int | None] = available_bytes
    ) -> None:
        self._driver = driver
        self._available = available
        self._maps: dict[MappedBlock, mmap.mmap] = {}

    def allocate_mapped(self, nbytes: int) -> MappedBlock:
        """
        Raises:
            CudaError: so much cannot be page-locked.
            OSError: so much memory is not there.
        """
        made = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            made.madvise(mmap.MADV_HUGEPAGE)
        host = ctypes.addressof(ctypes.c_char.from_buffer(made))
        try:
            self._touch(host, nbytes)
            mapped = self._driver.register(host, nbytes)
        except BaseException:
            made.close()
            raise
        self._maps[mapped] = made
        return mapped

    def _touch(self, host: int, nbytes: int) -> None:
        """A part at a time: what is touched before it is there is what the kernel ends us for."""

        def touch(begin: int, until: int) -> None:
            ctypes.memset(host + begin, 0, until - begin)

        with ThreadPoolExecutor(_THREADS) as threads:
            for begin in range(0, nbytes, _PART_BYTES):
                size = min(_PART_BYTES, nbytes - begin)
                self._wait_for(size, nbytes)
                ends = [begin + size * each // _THREADS for each in range(_THREADS + 1)]
                list(threads.map(touch, ends, ends[1:]))

    def _wait_for(self, size: int, nbytes: int) -> None:
        until_s = time.monotonic() + _GROWS_S
        while (left := self._available()) is not None and left < size + _SPARE_BYTES:
            if time.monotonic() >= until_s:
                raise OSError(
                    f"{nbytes >> 20} MiB of page-locked memory do not fit: {left >> 20} MiB are "
                    f"available, of which {_SPARE_BYTES >> 20} stay free"
                )
            time.sleep(_LOOK_S)

    def free_mapped(self, mapped: MappedBlock) -> None:
        """
        Raises:
            CudaError: the driver refused; the memory stays mapped, which is safe.
        """
        self._driver.unregister(mapped)
        self._maps.pop(mapped).close()
