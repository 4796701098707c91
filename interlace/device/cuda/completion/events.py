"""Events that follow batches, used again and again."""

from __future__ import annotations

from typing import Final

from interlace.device.cuda.driver.api import Driver

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
