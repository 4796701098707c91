"""Prometheus text, read back: samples by name and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_SAMPLE: Final = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line: its labels and value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of a metrics page; names that are not there have no samples."""

    samples: Mapping[str, tuple[MetricSample, ...]] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """The sum of a name's samples that carry these labels; 0 if there are none."""
        return sum(sample.value for sample in self.having(name, labels))

    def having(self, name: str, labels: Mapping[str, str]) -> list[MetricSample]:
        """A name's samples that carry these labels."""
        wanted = labels.items()
        return [s for s in self.samples.get(name, ()) if wanted <= s.labels.items()]

    def buckets(self, name: str, labels: Mapping[str, str]) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound, summed over samples."""
        found: dict[float, float] = {}
        for sample in self.having(f"{name}_bucket", labels):
            bound = float(sample.labels["le"])
            found[bound] = found.get(bound, 0.0) + sample.value
        return dict(sorted(found.items()))


def read_metrics(text: str) -> Scrape:
    """Parse a page; lines that are no samples are skipped."""
    found: dict[str, list[MetricSample]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = _LABEL.findall(labels or "")
        sample = MetricSample({key: _plain(raw) for key, raw in pairs}, number)
        found.setdefault(name, []).append(sample)
    return Scrape({name: tuple(samples) for name, samples in found.items()})


def bucket_quantile(counts: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram of cumulative counts, linear inside its bucket.

    ``None`` without observations; the largest finite bound for those above it.
    """
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    rank, below, low = share * total, 0.0, 0.0
    for bound, count in counts.items():
        if count >= rank and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        below, low = count, bound if bound != float("inf") else low
    return low


def _plain(raw: str) -> str:
    return re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape[0]], raw)
