"""Completion by sleeping: a thread per lane waits for the event behind each batch."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from interlace.device.cuda.completion.flags import InFlightSequences, LaneFlags
from interlace.device.cuda.driver.api import Driver, MappedBlock
from interlace.device.cuda.driver.errors import CudaError

_PER_LANE: Final = 4


class EventPool:
    """Events made ahead, so that none is made while serving unless many batches are in flight.

    Raises:
        CudaError: no event can be made.
    """

    def __init__(self, driver: Driver, lanes: int, blocking: bool) -> None:
        self._driver = driver
        self._blocking = blocking
        self._made = [driver.event(blocking=blocking) for _ in range(lanes * _PER_LANE)]
        self._free = list(self._made)

    def record(self, stream: int) -> int:
        """An event behind what the stream holds now.

        Raises:
            CudaError: the GPU failed.
        """
        event = self._free.pop() if self._free else self._another()
        self._driver.record(event, stream)
        return event

    def give_back(self, event: int) -> None:
        """It has ended and will not be queried again."""
        self._free.append(event)

    def close(self) -> None:
        for event in self._made:
            self._driver.destroy_event(event)

    def _another(self) -> int:
        event = self._driver.event(blocking=self._blocking)
        self._made.append(event)
        return event


class BlockingEvents:
    """``Completions`` by threads that sleep in the driver, without the GIL.

    A lane's thread begins with its first batch.

    Raises:
        CudaError: no events or page-locked memory are left.
    """

    def __init__(self, driver: Driver, lanes: int) -> None:
        self._driver = driver
        self._flags = LaneFlags(driver, lanes)
        self._awaited = InFlightSequences()
        self._events = EventPool(driver, lanes, blocking=True)
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended: deque[tuple[int, int, int]] = deque()
        self._threads: dict[int, tuple[threading.Thread, SimpleQueue[tuple[int, int] | None]]] = {}

    def flag(self, lane_index: int) -> MappedBlock:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        event = self._events.record(stream)
        self._awaited.add(lane_index, sequence, stream)
        if lane_index not in self._threads:
            self._threads[lane_index] = self._begin(lane_index)
        self._threads[lane_index][1].put((sequence, event))

    def fileno(self) -> int:
        return self._fd

    def look(self, for_s: float) -> bool:
        return False  # polling would keep the waiting threads from running

    def drain(self) -> list[tuple[int, int]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        found: list[tuple[int, int]] = []
        while self._ended:
            lane, sequence, event = self._ended.popleft()
            self._events.give_back(event)
            found += self._awaited.reached(lane, sequence)
        return found

    @property
    def busy(self) -> bool:
        return bool(self._awaited.lanes)

    def check(self) -> None:
        self._awaited.check(self._driver)

    def close(self) -> None:
        for thread, queue in self._threads.values():
            queue.put(None)
            thread.join()
        os.close(self._fd)
        self._events.close()
        self._flags.close()

    def _begin(
        self, lane_index: int
    ) -> tuple[threading.Thread, SimpleQueue[tuple[int, int] | None]]:
        queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        name = f"completions of lane {lane_index}"
        thread = threading.Thread(
            target=self._wait, name=name, args=(lane_index, queue), daemon=True
        )
        thread.start()
        return thread, queue

    def _wait(self, lane_index: int, queue: SimpleQueue[tuple[int, int] | None]) -> None:
        while (next_one := queue.get()) is not None:
            sequence, event = next_one
            with suppress(CudaError):  # ``check`` finds the same failure
                self._driver.wait_for(event)
                self._ended.append((lane_index, sequence, event))
            os.eventfd_write(self._fd, 1)
