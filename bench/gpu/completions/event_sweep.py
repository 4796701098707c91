"""Completion by asking: an event behind each batch, queried at regular times."""

from __future__ import annotations

from collections import deque

from bench.gpu.completions.tick_timer import TickTimer
from interlace.device.cuda.completion.events import EventPool
from interlace.device.cuda.completion.flags import InFlightSequences, LaneFlags
from interlace.device.cuda.driver.api import Driver, MappedBlock


class EventSweep:
    """``Completions`` without threads: the descriptor ticks every ``period_us`` while anything is
    in flight, and ``drain`` queries the oldest event of each lane.

    Raises:
        CudaError: no events or page-locked memory are left.
    """

    def __init__(self, driver: Driver, lanes: int, period_us: int = 50) -> None:
        self._driver = driver
        self._flags = LaneFlags(driver, lanes)
        self._awaited = InFlightSequences()
        self._events = EventPool(driver, lanes, blocking=False)
        self._recorded: list[deque[int]] = [deque() for _ in range(lanes)]
        self._timer = TickTimer(period_us)

    def flag(self, lane_index: int) -> MappedBlock:
        return self._flags.mapped(lane_index)

    def submitted(self, lane_index: int, sequence: int, stream: int) -> None:
        event = self._events.record(stream)
        if not self._awaited.lanes:
            self._timer.start()
        self._recorded[lane_index].append(event)
        self._awaited.add(lane_index, sequence, stream)

    def fileno(self) -> int:
        return self._timer.fd

    def look(self, for_s: float) -> bool:
        return False

    def drain(self) -> list[tuple[int, int]]:
        self._timer.tick()
        ended: list[tuple[int, int]] = []
        for lane in self._awaited.lanes:
            recorded = self._recorded[lane]
            while recorded and self._driver.ended(recorded[0]):
                self._events.give_back(recorded.popleft())
                ended += self._awaited.first(lane, 1)
        if ended and not self._awaited.lanes:
            self._timer.stop()
        return ended

    @property
    def busy(self) -> bool:
        return bool(self._awaited.lanes)

    def check(self) -> None:
        self._awaited.check(self._driver)

    def close(self) -> None:
        self._timer.close()
        self._events.close()
        self._flags.close()
