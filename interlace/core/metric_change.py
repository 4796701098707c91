"""Changes of metrics that the code of models counts, on their way from its process."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class MetricChange(Struct, frozen=True, array_like=True, gc=False):
    """What one series changed by: it is ``value`` first, if that is given, and more by ``added``.

    Of a histogram, ``added`` is the sum of new observations, and ``counts`` are their numbers by
    bucket. ``bounds`` are the upper ends of all buckets but the last.
    """

    name: str
    help: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    added: float
    value: float | None = None
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
