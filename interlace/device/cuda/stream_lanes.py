"""Lanes without partitions: plain streams that share all SMs, as Triton's instances do."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.lanes import Lane, LaneTable


class StreamLanes:
    """As many plain streams as there are partitions; a share limits nothing.

    At most ``most`` partitions stand at a time (``None``: any number).
    """

    def __init__(self, driver: Driver, most: int | None = None) -> None:
        self._driver = driver
        self._most = most
        self._roster = LaneTable()
        self._aside: Lane | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._roster)

    @property
    def blocks(self) -> tuple[int, int]:
        return 0, 0

    def aside(self) -> Lane:
        if self._aside is None:
            self._aside = self._lane(0, 0)
        return self._aside

    def carve(self, name: str, share_pct: int, leaving: Collection[str] = ()) -> Lane:
        if not 0 < share_pct <= 100:
            raise ValueError(f"a share of {share_pct} %: expected one of 1 to 100")
        self._roster.check_new(name)
        idle = self._roster.idle()
        used = len(self.lanes) - len(idle)
        if self._most is not None and used >= self._most:
            raise ValueError(f"partition '{name}': this process has its {self._most} already")
        lane = idle[0] if idle else self._create()
        lane.name, lane.share_pct = name, share_pct
        return lane

    def release(self, name: str) -> None:
        self._roster.release(name)

    def retire(self, lane: Lane) -> None:
        self._roster.remove(lane)
        self._driver.destroy_stream(lane.stream)

    def close(self) -> None:
        aside, self._aside = self._aside, None
        with ExitStack() as steps:  # every step is tried
            for lane in [*self._roster.clear(), *([aside] if aside else [])]:
                steps.callback(self._driver.destroy_stream, lane.stream)

    def _create(self) -> Lane:
        return self._roster.add(self._lane(self._roster.index(), 100))

    def _lane(self, index: int, share_pct: int) -> Lane:
        sms = self._driver.board.sms
        return Lane(index, share_pct, sms, self._driver.stream(), units=tuple(range(sms)))
