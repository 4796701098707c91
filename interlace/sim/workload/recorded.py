"""Recorded traces: Azure Functions by minute and by invocation, and times of one's own."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from interlace.sim.arrivals import Times


class TraceError(ValueError):
    """A file that is no trace: which file, which line, what was expected."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Invocations per bin of ``bin_s`` seconds, Poisson inside a bin: the trace says no more.

    ``scale`` multiplies every count (fractions are rounded at random, so that the mean holds),
    ``speed`` plays the trace that many times faster.
    """

    counts: tuple[int, ...]
    bin_s: float = 60.0
    scale: float = 1.0
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        length_ms = self.bin_s / self.speed * 1000.0
        wanted = np.array(self.counts, dtype=float) * self.scale
        drawn = np.floor(wanted + random.uniform(0.0, 1.0, len(wanted))).astype(int)
        starts = np.repeat(np.arange(len(drawn)) * length_ms, drawn)
        times: Times = np.sort(starts + random.uniform(0.0, length_ms, int(drawn.sum())))
        return times[times < seconds * 1000.0]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """These very times, in ms, played ``speed`` times faster."""

    times_ms: Times
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        times = np.sort(self.times_ms) / self.speed
        kept: Times = times[(times >= 0.0) & (times < seconds * 1000.0)]
        return kept


def azure_counts(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Azure Functions 2019: a row a function, a column a minute, by function name.

    Columns whose names are whole numbers are minutes; HashFunction (or the first column) names
    the function.

    Raises:
        TraceError: the file has no such columns, or a count is no number.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        names = rows.fieldnames or []
        minutes = sorted((name for name in names if name.isdigit()), key=int)
        if not minutes:
            raise TraceError(f"{path}: line 1: expected columns 1, 2, ... with counts by minute")
        key = "HashFunction" if "HashFunction" in names else names[0]
        found: dict[str, tuple[int, ...]] = {}
        for row in rows:
            try:
                found[row[key]] = tuple(int(row[minute]) for minute in minutes)
            except (TypeError, ValueError):
                raise TraceError(
                    f"{path}: line {rows.line_num}: expected a whole number in every minute"
                ) from None
        return found


def azure_invocations(path: Path) -> Mapping[str, Times]:
    """Azure Functions 2021: a row an invocation with func, end_timestamp and duration, in s.

    An invocation arrives when it begins: its end less its duration. Times are ms from the first.

    Raises:
        TraceError: a column is missing, or a value is no number.
    """
    starts: dict[str, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        wanted = ("func", "end_timestamp", "duration")
        if missing := [name for name in wanted if name not in (rows.fieldnames or [])]:
            raise TraceError(f"{path}: line 1: no column {missing[0]}; expected {wanted}")
        for row in rows:
            try:
                start_s = float(row["end_timestamp"]) - float(row["duration"])
            except (TypeError, ValueError):
                raise TraceError(f"{path}: line {rows.line_num}: expected numbers") from None
            starts.setdefault(row["func"], []).append(start_s * 1000.0)
    first_ms = min((min(times) for times in starts.values()), default=0.0)
    return {name: np.sort(np.array(times) - first_ms) for name, times in starts.items()}


def own_times(path: Path) -> Mapping[str, Times]:
    """A trace of one's own: a CSV with the columns time_ms and model.

    Raises:
        TraceError: a column is missing, or a time is no number.
    """
    times: dict[str, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if missing := {"time_ms", "model"} - set(rows.fieldnames or []):
            raise TraceError(f"{path}: line 1: no column {sorted(missing)[0]}")
        for row in rows:
            try:
                times.setdefault(row["model"], []).append(float(row["time_ms"]))
            except (TypeError, ValueError):
                raise TraceError(f"{path}: line {rows.line_num}: time_ms is no number") from None
    return {model: np.sort(np.array(found)) for model, found in times.items()}


def folded(
    counts: Mapping[str, Sequence[int]], models: Sequence[str], rate_rps: float, bin_s: float = 60.0
) -> Mapping[str, Counts]:
    """Functions onto models as DeepPlan maps them: by volume, the i-th to model i mod n.

    Every count is multiplied so that all models together get ``rate_rps`` on average over the
    trace. (Its released code drops the fraction of each count; here the mean holds.)
    """
    by_volume = sorted(counts.values(), key=lambda one: -sum(one))
    bins = max((len(one) for one in by_volume), default=0)
    sums = {model: np.zeros(bins, dtype=int) for model in models}
    for index, one in enumerate(by_volume):
        sums[models[index % len(models)]] += np.array(one, dtype=int)
    total = sum(int(one.sum()) for one in sums.values())
    scale = rate_rps * bins * bin_s / total if total else 0.0
    return {model: Counts(tuple(int(c) for c in one), bin_s, scale) for model, one in sums.items()}


def refitted(
    times_ms: Mapping[str, Times],
    models: Sequence[str],
    window_s: float,
    rate_scale: float = 1.0,
    cv_scale: float = 1.0,
) -> Mapping[str, Refitted]:
    """Functions onto models as AlpaServe maps them: in turn, each window refitted by a Gamma.

    The rate and the coefficient of variation of every window are kept, times the two scales.
    """
    merged: dict[str, list[Times]] = {model: [] for model in models}
    for index, times in enumerate(times_ms.values()):
        merged[models[index % len(models)]].append(times)
    return {
        model: Refitted(tuple(_windows(parts, window_s, rate_scale, cv_scale)), window_s)
        for model, parts in merged.items()
    }


@dataclass(frozen=True, slots=True)
class Refitted:
    """Gamma gaps window after window: (rate in rps, coefficient of variation) of each."""

    windows: tuple[tuple[float, float], ...]
    window_s: float

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        pieces: list[Times] = [np.empty(0)]
        for index, (rate_rps, cv) in enumerate(self.windows):
            if rate_rps <= 0 or index * self.window_s >= seconds:
                continue
            shape, mean_ms = 1.0 / cv**2, 1000.0 / rate_rps
            count = int(rate_rps * self.window_s * 2 + 20 * cv + 20)
            offsets = np.cumsum(random.gamma(shape, mean_ms / shape, count))
            inside = offsets[offsets < self.window_s * 1000.0]
            pieces.append(inside + index * self.window_s * 1000.0)
        times = np.concatenate(pieces)
        return times[times < seconds * 1000.0]


def _windows(
    parts: Sequence[Times], window_s: float, rate_scale: float, cv_scale: float
) -> Iterator[tuple[float, float]]:
    """Rate and variation of each window of the merged arrivals."""
    times = np.sort(np.concatenate([np.empty(0), *parts]))
    if not len(times):
        return
    for index in range(int(times[-1] / 1000.0 / window_s) + 1):
        low, high = np.searchsorted(times, [index * window_s * 1e3, (index + 1) * window_s * 1e3])
        gaps = np.diff(times[low:high])
        mean_ms = float(gaps.mean()) if len(gaps) else 0.0
        cv = float(gaps.std()) / mean_ms if mean_ms > 0 else 1.0
        yield (high - low) / window_s * rate_scale, max(0.05, cv * cv_scale)
