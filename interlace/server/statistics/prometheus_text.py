"""The Prometheus text format, written without exponents because clients read it by pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from interlace.server.statistics.model_statistics import BUCKETS_US, Duration

Labels = Mapping[str, str]


class MetricsPage:
    """Families of samples in the order they are first named."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(self, name: str, kind: str, help: str) -> None:
        """Begin a family; its samples come under it wherever they are added."""
        self._families[name] = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]

    def add(self, name: str, value: float, labels: Labels | None = None) -> None:
        """One sample of a counter or gauge."""
        self._families[name].append(f"{name}{_labels(labels or {})} {number(value)}")

    def add_histogram(
        self, name: str, duration: Duration, labels: Labels, unit_us: float = 1.0
    ) -> None:
        """One histogram; ``unit_us`` is the family's unit in us."""
        lines = self._families[name]
        bounds = [number(bound / unit_us) for bound in BUCKETS_US]
        for bound, count in zip([*bounds, "+Inf"], accumulate(duration.buckets), strict=True):
            lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {count}")
        lines.append(f"{name}_sum{_labels(labels)} {number(duration.sum_us / unit_us)}")
        lines.append(f"{name}_count{_labels(labels)} {duration.count}")

    def text(self) -> str:
        """The page; families without samples are left out."""
        filled: Sequence[list[str]] = [f for f in self._families.values() if len(f) > 2]
        return "".join(f"{line}\n" for family in filled for line in family)


def number(value: float) -> str:
    """A value in plain decimals, to a millionth."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return plain.encode("ascii", "backslashreplace").decode("ascii")
