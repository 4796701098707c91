"""Metrics that a model's code counts, in its own process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import IntEnum


class MetricKind(IntEnum):
    """What a metric counts."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One series of a family. Its calls raise ``ValueError`` if its kind does not have them."""

    def __init__(self, family: MetricFamily, buckets: Sequence[float]) -> None:
        self._family = family
        self._value = 0.0
        self._buckets = tuple(buckets)
        self.counts = [0] * (len(self._buckets) + 1)

    def increment(self, value: float) -> None:
        """Add to a counter or gauge; a counter does not go down."""
        self._check("increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._family.kind is MetricKind.COUNTER and value < 0:
            raise ValueError(f"metric '{self._family.name}': a counter cannot go down by {value}")
        self._value += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._check("set", MetricKind.GAUGE)
        self._value = float(value)

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        self._check("observe", MetricKind.HISTOGRAM)
        self._value += value
        self.counts[bisect_left(self._buckets, value)] += 1

    def value(self) -> float:
        """The value; of a histogram the sum of its observations."""
        return self._value

    def _check(self, call: str, *kinds: MetricKind) -> None:
        kind = self._family.kind
        if kind not in kinds:
            raise ValueError(f"metric '{self._family.name}' of kind {kind.name} has no {call}()")


class MetricFamily:
    """Series of one name that differ in their labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name
        self.description = description
        self.kind = MetricKind(kind)
        self._series: dict[tuple[tuple[str, str], ...], Metric] = {}

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] = ()
    ) -> Metric:
        """The series with these labels; two calls give the same one."""
        key = tuple(sorted((labels or {}).items()))
        return self._series.setdefault(key, Metric(self, buckets))
