"""Repetition and spread: what several runs of the same say together."""

from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Final, NamedTuple

#: Student's t for a 95 % interval of so many runs.
_T95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


class Spread(NamedTuple):
    """Median, least and greatest of some runs."""

    median: float
    least: float
    greatest: float
    runs: int

    def text(self, digits: int = 2) -> str:
        """As tables have it: the median, and the others in brackets."""
        least, greatest = f"{self.least:.{digits}f}", f"{self.greatest:.{digits}f}"
        return f"{self.median:.{digits}f} ({least}-{greatest})"


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval; 0 for a single run."""

    mean: float
    half: float

    def text(self, digits: int = 3) -> str:
        """As tables have it."""
        return f"{self.mean:.{digits}f} ± {self.half:.{digits}f}"


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some runs; none of none."""
    if not values:
        return None
    return Spread(median(values), min(values), max(values), len(values))


def interval(values: Sequence[float]) -> Interval:
    """The mean of up to ten runs, by Student's t."""
    if len(values) < 2:
        return Interval(values[0], 0.0)
    return Interval(mean(values), _T95[len(values)] * stdev(values) / len(values) ** 0.5)


def percentile(values: Sequence[float], part_pct: float) -> float | None:
    """A percentile of some values, straight between them; none of none."""
    import numpy as np

    return float(np.percentile(values, part_pct)) if len(values) else None
