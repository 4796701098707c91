"""Completion by callback: the driver calls a C function behind each batch."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

from interlace.device.cuda.completion.flags import InFlightSequences, LaneFlags, poll_for
from interlace.device.cuda.completion.loops import compiled_loops
from interlace.device.cuda.driver.api import Driver, MappedBlock

_LANE_BYTES: Final = 16  #: file descriptor, count


class HostFunction:
    """``Completions`` by ``cuLaunchHostFunc``. The function is compiled and never takes the GIL;
    the stream waits until it has returned.

    Raises:
        CudaError: no page-locked memory is left.
        NoLoops: nothing compiles the function here.
    """

    def __init__(self, driver: Driver, lanes: int) -> None:
        self._driver = driver
        self._loops, _ = compiled_loops()
        self._flags = LaneFlags(driver, lanes)
        self._awaited = InFlightSequences()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._words = (ctypes.c_uint64 * (2 * lanes))(*([self._fd, 0] * lanes))
        self._told = [0] * lanes

    def flag(self, lane_index: int) -> MappedBlock:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        words = ctypes.addressof(self._words) + lane_index * _LANE_BYTES
        self._driver.host_call(stream, self._loops.count_and_tell, words)
        self._awaited.add(lane_index, sequence, stream)

    def fileno(self) -> int:
        return self._fd

    def look(self, for_s: float) -> bool:
        words, told, lanes = self._words, self._told, self._awaited.lanes
        return poll_for(lambda: any(words[2 * lane + 1] != told[lane] for lane in lanes), for_s)

    def drain(self) -> list[tuple[int, int]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        ended: list[tuple[int, int]] = []
        for lane in self._awaited.lanes:
            count = self._words[2 * lane + 1]
            ended += self._awaited.first(lane, count - self._told[lane])
            self._told[lane] = count
        return ended

    @property
    def busy(self) -> bool:
        return bool(self._awaited.lanes)

    def check(self) -> None:
        self._awaited.check(self._driver)

    def close(self) -> None:
        os.close(self._fd)
        self._flags.close()
