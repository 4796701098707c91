"""Much page-locked memory at once: huge pages, touched by threads, registered in one call."""

from __future__ import annotations

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from interlace.device.cuda.driver.api import Driver, MappedBlock

#: The driver's own allocation touches with one thread: 16 GiB took 7.9 s, so 1.6 (cuDF #23457).
_THREADS: Final = 8
_PART_BYTES: Final = 256 << 20


class TouchedPages:
    """Anonymous memory that the GPU reads in place and copies from; a ``PinnedSource``."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
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

        def touch(begin: int) -> None:
            ctypes.memset(host + begin, 0, min(_PART_BYTES, nbytes - begin))

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(touch, range(0, nbytes, _PART_BYTES)))
        try:
            mapped = self._driver.register(host, nbytes)
        except BaseException:
            made.close()
            raise
        self._maps[mapped] = made
        return mapped

    def free_mapped(self, mapped: MappedBlock) -> None:
        """
        Raises:
            CudaError: the driver refused; the memory stays mapped, which is safe.
        """
        self._driver.unregister(mapped)
        self._maps.pop(mapped).close()
