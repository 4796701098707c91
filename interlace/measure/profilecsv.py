"""Profiles from a table of latencies: one CSV row for each batch and share that was measured."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

from interlace.core.profile import Point, Profile

_REQUIRED: Final = ("model", "share_pct", "batch", "latency_ms")
_OPTIONAL: Final = (
    "p95_ms",
    "p99_ms",
    "samples",
    "weights_mb",
    "activation_mb",
    "load_ms",
    "l2_util",
    "dram_util",
)
_MB: Final = 10**6


class ProfileTableError(ValueError):
    """A table that cannot be read: file, line, column, what is wrong and what is expected."""


@dataclass(slots=True)
class _Draft:
    """One model's rows so far."""

    points: dict[tuple[int, int], Point] = field(default_factory=dict)
    pressure: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    weights_bytes: int = 0
    activation_bytes: int = 0
    load_ms: float = 0.0


def read_profiles(path: Path, gpu_kind: str) -> dict[str, Profile]:
    """Profiles by model name from ``path``, as measured on ``gpu_kind``.

    Columns: model, share_pct, batch, latency_ms (median); and if known p95_ms, p99_ms, samples,
    weights_mb, activation_mb, load_ms, l2_util, dram_util (both 0..1). Lines that begin with # are
    comments.

    Raises:
        ProfileTableError: a column is missing or unknown, or a value is not what it should be.
        OSError: the file cannot be read.
    """
    drafts: dict[str, _Draft] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = [(n, text) for n, text in enumerate(file, 1) if not text.startswith("#")]
    rows = csv.DictReader(text for _, text in lines)
    _check_columns(path, rows.fieldnames or ())
    for (number, _), row in zip(lines[1:], rows, strict=False):
        _take(_Row(path, number, row), drafts)
    if not drafts:
        raise ProfileTableError(f"{path}: no rows; expected one for each model, share and batch")
    return {
        name: Profile(
            name,
            "csv",
            gpu_kind,
            draft.weights_bytes,
            draft.activation_bytes,
            draft.points,
            load_ms=draft.load_ms,
            pressure=draft.pressure,
        )
        for name, draft in drafts.items()
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """One line with where it stands."""

    path: Path
    line: int
    values: Mapping[str, str | None]

    def number(self, column: str, default: float | None = None, most: float = 1e12) -> float:
        text = (self.values.get(column) or "").strip()
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value < 0 or value > most:
            raise ProfileTableError(
                f"{self.path}:{self.line}: {column} is '{text}'; "
                f"expected a number from 0 to {most:g}"
            )
        return value

    def whole(self, column: str, most: int) -> int:
        value = self.number(column, most=most)
        if value < 1 or value != int(value):
            raise ProfileTableError(
                f"{self.path}:{self.line}: {column} is {value:g}; "
                f"expected a whole number from 1 to {most}"
            )
        return int(value)


def _check_columns(path: Path, found: object) -> None:
    names = list(found) if isinstance(found, (list, tuple)) else []
    missing = [name for name in _REQUIRED if name not in names]
    unknown = [name for name in names if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        what = f"no column {missing[0]}" if missing else f"unknown column '{unknown[0]}'"
        raise ProfileTableError(
            f"{path}:1: {what}; expected {', '.join(_REQUIRED)} and, if known, "
            f"{', '.join(_OPTIONAL)}"
        )


def _take(row: _Row, drafts: dict[str, _Draft]) -> None:
    name = (row.values["model"] or "").strip()
    if not name:
        raise ProfileTableError(f"{row.path}:{row.line}: model is empty")
    draft = drafts.setdefault(name, _Draft())
    key = (row.whole("batch", 1_000_000), row.whole("share_pct", 100))
    median_ms = row.number("latency_ms")
    if median_ms <= 0:
        raise ProfileTableError(f"{row.path}:{row.line}: latency_ms is 0; expected more")
    if key in draft.points:
        raise ProfileTableError(
            f"{row.path}:{row.line}: batch {key[0]} at {key[1]} % of {name} is there twice"
        )
    p95_ms = row.number("p95_ms", median_ms)
    samples = int(row.number("samples", 1))
    draft.points[key] = Point(median_ms, p95_ms, row.number("p99_ms", p95_ms), samples)
    if row.values.get("l2_util"):
        draft.pressure[key] = (row.number("l2_util", most=1), row.number("dram_util", 0.0, 1))
    draft.weights_bytes = int(row.number("weights_mb", draft.weights_bytes / _MB) * _MB)
    draft.activation_bytes = int(row.number("activation_mb", draft.activation_bytes / _MB) * _MB)
    draft.load_ms = row.number("load_ms", draft.load_ms)
