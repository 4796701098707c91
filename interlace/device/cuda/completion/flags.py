"""Flag words of lanes in mapped memory, and what is awaited of each lane."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from interlace.device.cuda.driver.api import Driver, MappedBlock

WORD_BYTES: Final = 8
LINE_BYTES: Final = 64  #: a cache line each, so that lanes do not disturb one another


class LaneFlags:
    """``lanes`` flag words (u64), zero at first, each in a cache line of its own.

    Raises:
        CudaError: no page-locked memory is left.
    """

    def __init__(self, driver: Driver, lanes: int) -> None:
        self._driver = driver
        self._block = driver.allocate_mapped(lanes * LINE_BYTES)
        ctypes.memset(self._block.host, 0, self._block.nbytes)
        count = lanes * LINE_BYTES // WORD_BYTES
        self._words = (ctypes.c_uint64 * count).from_address(self._block.host)

    def mapped(self, lane_index: int) -> MappedBlock:
        """The word of a lane, for the GPU to write.

        Raises:
            IndexError: there are fewer lanes.
        """
        offset = lane_index * LINE_BYTES
        if not 0 <= offset < self._block.nbytes:
            raise IndexError(f"lane {lane_index}: there are {self._block.nbytes // LINE_BYTES}")
        return MappedBlock(self._block.host + offset, self._block.device + offset, WORD_BYTES)

    def value(self, lane_index: int) -> int:
        """What the GPU last stored."""
        return self._words[lane_index * LINE_BYTES // WORD_BYTES]

    def close(self) -> None:
        """Nothing reads or writes them any more."""
        self._driver.free_mapped(self._block)


class InFlightSequences:
    """Sequence numbers in flight, by lane, in order, and the streams that they are in."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[int]] = {}
        self._streams: dict[int, int] = {}

    @property
    def lanes(self) -> tuple[int, ...]:
        """Those with anything in flight."""
        return tuple(self._lanes)

    def add(self, lane_index: int, sequence: int, stream: int) -> None:
        self._lanes.setdefault(lane_index, deque()).append(sequence)
        self._streams[lane_index] = stream

    def oldest(self, lane_index: int) -> int:
        """What a lane with anything in flight will come to next."""
        return self._lanes[lane_index][0]

    def reached(self, lane_index: int, sequence: int) -> list[tuple[int, int]]:
        """What ended if the lane has come to ``sequence``; it is awaited no more."""
        waiting = self._lanes.get(lane_index, deque())
        ended: list[tuple[int, int]] = []
        while waiting and waiting[0] <= sequence:
            ended.append((lane_index, waiting.popleft()))
        if ended and not waiting:
            del self._lanes[lane_index], self._streams[lane_index]
        return ended

    def check(self, driver: Driver) -> None:
        """Ask the GPU whether it still works: each stream that holds work says so if not.

        An event of our own would not do: one that was never recorded has ended, which the driver
        says without a look at the GPU.

        Raises:
            CudaError: the GPU failed.
        """
        for stream in self._streams.values():
            driver.idle(stream)


def poll_for(told: Callable[[], bool], for_s: float) -> bool:
    """Ask at least once, and for that long, whether memory tells something."""
    until_s = time.perf_counter() + for_s
    while not (found := told()) and time.perf_counter() < until_s:
        pass
    return found
