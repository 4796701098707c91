"""Metrics that a model's code counts. The server collects their changes after each batch."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import IntEnum
from threading import Lock
from typing import ClassVar, Final
from weakref import WeakSet

from interlace.core.metric_change import COUNTER, GAUGE, HISTOGRAM, MetricChange
from interlace.formats.python_backend.errors import TritonModelException, text, wrong_type

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: Threads of models count, too.
_LOCK: Final = Lock()


class MetricKind(IntEnum):
    """What a metric counts."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


_KINDS: Final = (COUNTER, GAUGE, HISTOGRAM)


class Metric:
    """One series of a family. Its calls raise ``TritonModelException`` if its kind has none."""

    changed: ClassVar[dict[Metric, None]] = {}  #: series of this process, since they were taken

    def __init__(
        self, family: MetricFamily, labels: tuple[tuple[str, str], ...], buckets: Sequence[float]
    ) -> None:
        self._family = family
        self._labels = labels
        self._value = 0.0
        self._set: float | None = None
        self._added = 0.0
        self._buckets = tuple(buckets)
        self._observed = [0] * (len(self._buckets) + 1)

    def increment(self, value: float) -> None:
        """Add to a counter or gauge; a counter does not go down."""
        self._check("increment", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._family.kind is MetricKind.COUNTER and value < 0:
            name = self._family.name
            raise TritonModelException(f"metric '{name}': a counter cannot go down by {value}")
        self._add(value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._check("set", MetricKind.GAUGE)
        with _LOCK:
            self._value = self._set = float(value)
            self._added = 0.0
            self.changed[self] = None

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        self._check("observe", MetricKind.HISTOGRAM)
        with _LOCK:
            self._observed[bisect_left(self._buckets, value)] += 1
        self._add(value)

    def value(self) -> float:
        """What this process counted."""
        self._check("value", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._value

    def _add(self, value: float) -> None:
        with _LOCK:
            self._value += value
            self._added += value
            self.changed[self] = None

    def _taken(self) -> MetricChange:
        family = self._family
        counts = tuple(self._observed) if family.kind is MetricKind.HISTOGRAM else ()
        change = MetricChange(
            family.name,
            family.description,
            _KINDS[family.kind],
            self._labels,
            self._added,
            self._set,
            self._buckets,
            counts,
        )
        self._set, self._added, self._observed = None, 0.0, [0] * len(self._observed)
        return change

    def _check(self, call: str, *kinds: MetricKind) -> None:
        kind = self._family.kind
        if kind not in kinds:
            name = self._family.name
            raise TritonModelException(f"metric '{name}' of kind {kind.name} has no {call}()")


class MetricFamily:
    """Series of one name that differ in their labels."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    _living: ClassVar[WeakSet[MetricFamily]] = WeakSet()  #: of all models of this process

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Name what is counted.

        Raises:
            TypeError: an argument is of another type.
            TritonModelException: the name is none, or that of a family of another kind.
        """
        self.name = _checked(text(name, "name"))
        self.description = text(description, "description")
        if not isinstance(kind, MetricKind):
            raise wrong_type("kind", "a kind of MetricFamily", kind)
        for one in self._living:
            if one.name == name and one.kind is not kind:
                found = f"metric family '{name}' is a {one.kind.name}"
                raise TritonModelException(f"{found}; expected another name for a {kind.name}")
        self.kind: MetricKind = kind
        self._series: dict[tuple[tuple[str, str], ...], Metric] = {}
        self._living.add(self)

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The series with these labels; two calls give the same one.

        Raises:
            TritonModelException: ``labels`` are no ``dict`` of texts, or a histogram has no
                ``buckets`` in ascending order.
        """
        given = {} if labels is None else labels
        texts = [*given, *given.values()] if isinstance(given, dict) else [None]
        if not all(isinstance(one, str) for one in texts):
            raise TritonModelException(f"labels: expected a dict of str, got {labels!r}")
        ascending = buckets is not None and sorted(set(buckets)) == list(buckets)
        if self.kind is MetricKind.HISTOGRAM and not ascending:
            raise TritonModelException(f"buckets: expected ascending numbers, got {buckets}")
        key = tuple(sorted((_checked(name), value) for name, value in given.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Metric(self, key, buckets or ())
            with _LOCK:
                Metric.changed[series] = None  # the page has it with 0, as in Triton
        return series


def take_changes() -> list[MetricChange]:
    """What the series of this process changed by since the last call."""
    with _LOCK:
        changes = [metric._taken() for metric in Metric.changed]
        Metric.changed.clear()
    return changes


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TritonModelException(f"metric or label '{name}': expected letters, digits, _ and :")
    return name
