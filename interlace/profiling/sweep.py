"""A sweep: which batches, how many samples, when to stop, and how far it has come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from interlace.core.profile import LatencyPoint, quantile


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How thoroughly a model is measured.

    A point ends after ``samples`` executions or ``budget_s`` seconds, whichever comes first, but
    not before ``samples_min``, unless they take ten times ``budget_s``; also once
    ``steady_samples`` have a p95 of at most ``steady`` times their median. Warm-up runs of a point
    take a quarter of ``budget_s``. A point was disturbed by other work on the machine if its p95 is
    over ``calm`` times its median, or if it is ``doubtful`` beside the others. It is measured again
    ``retakes`` times at most, and the calmest take counts.
    A share's larger batches are left out once the median passes ``slo_multiple`` times the SLO: no
    plan could use them.
    ``factor`` is the step between batches. A load may take ``timeout_s``, an execution ``run_s``.
    """

    samples: int = 100
    samples_min: int = 3
    steady_samples: int = 12
    steady: float = 1.1
    warm_ups: int = 3
    budget_s: float = 0.6
    slo_multiple: float = 4.0
    factor: int = 2
    calm: float = 1.5
    retakes: int = 1
    timeout_s: float = 120.0
    run_s: float = 120.0

    def disturbed(self, point: LatencyPoint) -> bool:
        """Whether a point is worth taking again."""
        return point.p95_ms > self.calm * point.median_ms

    def describe(self) -> str:
        """One line for people: how the figures were taken."""
        return (
            f"command to completion, one batch at a time after {self.warm_ups} warm-up runs; "
            f"{self.samples_min} to {self.samples} samples or {self.budget_s:g} s a point, "
            f"{self.steady_samples} where they agree; larger batches left out past "
            f"{self.slo_multiple:g} x SLO"
        )


#: What `interlace profile` and a first start use.
THOROUGH: Final = SweepSettings()
#: For a model loaded into a running server: a couple of seconds instead of a quarter of a minute.
QUICK: Final = SweepSettings(
    samples=15, samples_min=3, warm_ups=1, budget_s=0.12, factor=4, run_s=10.0
)


def batch_sizes(max_batch: int, factor: int) -> tuple[int, ...]:
    """1, f, f^2, ... and always ``max_batch`` itself: interpolation needs the end point."""
    sizes, size = [], 1
    while size < max_batch:
        sizes.append(size)
        size *= factor
    return (*sizes, max_batch)


#: So many times its budget a point may take for ``samples_min``.
_LONG: Final = 10.0


def enough(latencies_ms: Sequence[float], spent_s: float, settings: SweepSettings) -> bool:
    """Whether a point has been sampled enough."""
    count = len(latencies_ms)
    if count < settings.samples_min:
        return spent_s >= _LONG * settings.budget_s
    if count >= settings.samples or spent_s >= settings.budget_s:
        return True
    if count < settings.steady_samples:
        return False
    ordered = sorted(latencies_ms)
    return quantile(ordered, 0.95) <= settings.steady * quantile(ordered, 0.5)


def point(latencies_ms: Sequence[float], gpu_ms: Sequence[float] = ()) -> LatencyPoint:
    """Quantiles of the samples. With fewer than 100 of them p99 is the largest one seen.

    ``gpu_ms`` are the GPU's own times, zeroes where it does not tell.
    """
    ordered = sorted(latencies_ms)
    return LatencyPoint(
        median_ms=quantile(ordered, 0.5),
        p95_ms=quantile(ordered, 0.95),
        p99_ms=quantile(ordered, 0.99),
        samples=len(ordered),
        gpu_ms=quantile(sorted(gpu_ms), 0.5) if gpu_ms else 0.0,
    )


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
