"""Completion by asking: an event behind each batch, queried at regular times."""

from __future__ import annotations

from collections import deque

from interlace.device.cuda.completion.events import Events
from interlace.device.cuda.completion.flags import Flags, Pulse
from interlace.device.cuda.completion.timer import Timer
from interlace.device.cuda.driver.api import Driver, Mapped


class EventSweep:
    """``Completions`` without threads: the descriptor ticks every ``period_us`` while anything is
    in flight, and ``drain`` queries the oldest event of each lane.

    Raises:
        CudaError: no events or page-locked memory are left.
    """

    def __init__(self, driver: Driver, lanes: int, period_us: int = 50) -> None:
        self._driver = driver
        self._flags = Flags(driver, lanes)
        self._pulse = Pulse(driver)
        self._events = Events(driver, lanes, blocking=False)
        self._waiting: dict[int, deque[tuple[int, int]]] = {}  #: of lanes with anything in flight
        self._timer = Timer(period_us)

    def flag(self, lane_index: int) -> Mapped:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        event = self._events.record(stream)
        if not self._waiting:
            self._timer.start()
        self._waiting.setdefault(lane_index, deque()).append((sequence, event))

    def fileno(self) -> int:
        return self._timer.fd

    def look(self, for_s: float) -> bool:
        return False

    def drain(self) -> list[tuple[int, int]]:
        self._timer.tick()
        ended = []
        for lane, waiting in list(self._waiting.items()):
            while waiting and self._driver.ended(waiting[0][1]):
                sequence, event = waiting.popleft()
                self._events.give_back(event)
                ended.append((lane, sequence))
            if not waiting:
                del self._waiting[lane]
        if ended and not self._waiting:
            self._timer.stop()
        return ended

    def check(self) -> None:
        self._pulse.check()

    def close(self) -> None:
        self._timer.close()
        self._events.close()
        self._pulse.close()
        self._flags.close()
