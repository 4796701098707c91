"""Metrics of models' own code, as the metrics page shows them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from interlace.core.metric_change import GAUGE, HISTOGRAM, MetricChange
from interlace.server.statistics import OWN_FAMILIES, MetricsPage, number

_log = logging.getLogger(__name__)
#: Further series are dropped: labels may hold anything.
SERIES_MAX: Final = 10_000


@dataclass(slots=True)
class _Series:
    value: float = 0.0
    counts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Family:
    help: str
    kind: str
    bounds: tuple[float, ...]
    series: dict[tuple[tuple[str, str], ...], _Series] = field(default_factory=dict)


class CustomMetrics:
    """One family for each name, whichever models and workers count in it, as in Triton.

    The first to name a family decides its kind and buckets. Counts outlive their workers.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._count = 0
        self._refused: set[str] = set()

    def apply(self, changes: Sequence[MetricChange]) -> None:
        """Take in what a worker counted."""
        for change in changes:
            if not self._apply(change) and change.name not in self._refused:
                if len(self._refused) < SERIES_MAX:
                    self._refused.add(change.name)
                _log.warning(
                    "metric '%s' of a model is left out: the server has one of that name, another "
                    "model counts it as another kind or with other buckets, or there are %d series",
                    change.name,
                    SERIES_MAX,
                )

    def add_to(self, page: MetricsPage) -> None:
        """Add all families to the page."""
        for name, family in self._families.items():
            page.family(name, family.kind, family.help.replace("\\", "\\\\").replace("\n", "\\n"))
            bounds = (*map(number, family.bounds), "+Inf")
            for labels, series in family.series.items():
                if family.kind == HISTOGRAM:
                    page.add_counts(name, bounds, series.counts, series.value, dict(labels))
                else:
                    page.add(name, series.value, dict(labels))

    def _apply(self, change: MetricChange) -> bool:
        family = self._families.get(change.name)
        if family is None:
            if change.name in OWN_FAMILIES or self._count >= SERIES_MAX:
                return False
            family = _Family(change.help, change.kind, change.bounds)
            self._families[change.name] = family
        if (family.kind, family.bounds) != (change.kind, change.bounds):
            return False
        series = family.series.get(change.labels)
        if series is None:
            if self._count >= SERIES_MAX:
                return False
            self._count += 1
            series = family.series[change.labels] = _Series(counts=[0] * len(change.counts))
        if change.value is not None and family.kind == GAUGE:
            series.value = change.value
        series.value += change.added
        series.counts = [a + b for a, b in zip(series.counts, change.counts, strict=True)]
        return True
