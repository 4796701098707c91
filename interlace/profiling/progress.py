"""How far long work has come, and how long the rest may take."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

#: Long work says this often, at least, what it does.
TELL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One point is about to be measured: ``done`` of ``total`` lie behind, ``left_s`` estimated."""

    model: str
    share_pct: int
    batch: int
    done: int
    total: int
    left_s: float


@asynccontextmanager
async def telling(log: logging.Logger, doing: Callable[[], str]) -> AsyncIterator[None]:
    """Log what is done while the block runs, and for how long already, every ``TELL_S``."""
    began_s = time.monotonic()

    async def tell() -> None:
        while True:
            await asyncio.sleep(TELL_S)
            log.info("%s (%.0f s)", doing(), time.monotonic() - began_s)

    task = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        task.cancel()


OnSweepStep = Callable[[SweepStep], None]


def no_progress(step: SweepStep) -> None:
    """A progress callback that shows nothing."""


class TimeEstimate:
    """Counts points and extrapolates: a new point costs what the past ones did on average.

    Until a few are done the guess is ``expected_s`` a point, so that the first estimate is not
    made of start-up costs alone.
    """

    _TRUSTED = 8

    def __init__(self, total: int, expected_s: float) -> None:
        self.total = total
        self.done = 0
        self._expected_s = expected_s
        self._started_s = time.monotonic()

    def advance(self) -> None:
        self.done += 1

    def skip(self, points: int) -> None:
        """These will not be measured."""
        self.total -= points

    @property
    def left_s(self) -> float:
        spent_s = time.monotonic() - self._started_s
        seen = min(self.done, self._TRUSTED) / self._TRUSTED
        average_s = spent_s / self.done if self.done else self._expected_s
        a_point_s = seen * average_s + (1.0 - seen) * self._expected_s
        return a_point_s * max(0, self.total - self.done)
