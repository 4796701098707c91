"""Completion by flags: a thread without the GIL watches the words that a GPU stores at the end."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from typing import Final

from interlace.device.cuda.completion.c_loops import poll_loop
from interlace.device.cuda.completion.flags import (
    LINE_BYTES,
    WORD_BYTES,
    InFlightSequences,
    LaneFlags,
    poll_for,
)
from interlace.device.cuda.driver.api import Driver, MappedBlock

_STOP: Final = 1  #: which word of ``scratch``


class FlagPoller:
    """``Completions`` without a call of CUDA per batch (Sync-lite).

    A thread without the GIL sweeps the flags while something is in flight, and sleeps else. Between
    sweeps it yields its core if ``rest_us`` is 0, so that it takes a core of its own; or it rests
    that long, which costs latency instead.

    Raises:
        CudaError: no page-locked memory is left.
        OSError: nothing compiles the thread's loop here.
    """

    def __init__(self, driver: Driver, lanes: int, rest_us: int = 0) -> None:
        self._driver = driver
        poll = poll_loop()
        self._flags = LaneFlags(driver, lanes)
        self._awaited = InFlightSequences()
        words = lanes * LINE_BYTES // WORD_BYTES
        self._wanted = (ctypes.c_uint64 * words)()
        self._seen = (ctypes.c_uint64 * lanes)()
        self._scratch = (ctypes.c_uint64 * 2)()
        self._tell_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=poll,
            name="completions",
            args=(
                self._flags.mapped(0).host,
                ctypes.addressof(self._wanted),
                ctypes.addressof(self._seen),
                lanes,
                LINE_BYTES,
                self._tell_fd,
                self._wake_fd,
                ctypes.addressof(self._scratch),
                rest_us,
            ),
            daemon=True,
        )
        self._thread.start()

    def flag(self, lane_index: int) -> MappedBlock:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        self._awaited.add(lane_index, sequence, stream)
        self._wanted[lane_index * LINE_BYTES // WORD_BYTES] = sequence
        os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        return self._tell_fd

    def look(self, for_s: float) -> bool:
        awaited, flags = self._awaited, self._flags
        oldest = [(lane, awaited.oldest(lane)) for lane in awaited.lanes]
        return poll_for(lambda: any(flags.value(lane) >= first for lane, first in oldest), for_s)

    def drain(self) -> list[tuple[int, int]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._tell_fd)
        ended: list[tuple[int, int]] = []
        for lane in self._awaited.lanes:
            ended += self._awaited.reached(lane, self._flags.value(lane))
        return ended

    @property
    def busy(self) -> bool:
        return bool(self._awaited.lanes)

    def check(self) -> None:
        self._awaited.check(self._driver)

    def close(self) -> None:
        self._scratch[_STOP] = 1
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)
        os.close(self._tell_fd)
        self._flags.close()
