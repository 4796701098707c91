"""Arrivals from traces: counts and times as they were, mapped to models or refitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlace.core.tables import TableError, did_you_mean
from interlace.sim.arrivals import Gamma, Times
from interlace.sim.workload.files import azure_counts, azure_invocations, own_times


@dataclass(frozen=True, slots=True)
class BinnedCounts:
    """Invocations per bin of ``bin_s`` seconds, Poisson inside a bin: the trace says no more.

    ``scale`` multiplies every count (fractions are rounded at random, so that the mean holds),
    ``speed`` plays the trace that many times faster. Nothing arrives after its end.
    """

    counts: tuple[int, ...]
    bin_s: float = 60.0
    scale: float = 1.0
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        length_ms = self.bin_s / self.speed * 1000.0
        bins = int(np.ceil(seconds * 1000.0 / length_ms))
        wanted = np.array(self.counts[:bins], dtype=float) * self.scale
        drawn = np.floor(wanted + random.uniform(0.0, 1.0, len(wanted))).astype(int)
        starts = np.repeat(np.arange(len(drawn)) * length_ms, drawn)
        times: Times = np.sort(starts + random.uniform(0.0, length_ms, int(drawn.sum())))
        return times[times < seconds * 1000.0]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTrace:
    """These very times, in ms, played ``speed`` times faster."""

    times_ms: Times
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        times = np.sort(self.times_ms) / self.speed
        kept: Times = times[(times >= 0.0) & (times < seconds * 1000.0)]
        return kept


@dataclass(frozen=True, slots=True)
class RefittedGamma:
    """Gamma gaps window after window: (rate in rps, coefficient of variation) of each."""

    windows: tuple[tuple[float, float], ...]
    window_s: float

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        pieces: list[Times] = [np.empty(0)]
        for index, (rate_rps, cv) in enumerate(self.windows):
            if index * self.window_s >= seconds:
                break
            inside = Gamma(rate_rps, cv)(self.window_s, random)
            pieces.append(inside + index * self.window_s * 1000.0)
        times = np.concatenate(pieces)
        return times[times < seconds * 1000.0]


#: Calls by function and minute.
Counts = npt.NDArray[np.int64]

#: Fewer gaps than this say nothing about their variation: taken for Poisson.
_GAPS = 3
_LEAST_CV = 0.05


def folded(counts: Counts, parts: int, rate_rps: float, bin_s: float = 60.0) -> list[BinnedCounts]:
    """Functions (rows) onto parts as DeepPlan maps them: by volume, the i-th to part i mod n.

    Every count is multiplied so that all parts together get ``rate_rps`` on average over the
    trace. (Its released code drops the fraction of each count; here the mean holds.)
    """
    by_volume = np.argsort(-counts.sum(axis=1), kind="stable")
    sums = [counts[by_volume[part::parts]].sum(axis=0) for part in range(parts)]
    total = int(counts.sum())
    scale = rate_rps * counts.shape[1] * bin_s / total if total else 0.0
    return [BinnedCounts(tuple(one.tolist()), bin_s, scale) for one in sums]


def drawn_day(counts: Counts, functions: int) -> Counts:
    """So many functions drawn from a sample, each begun at a minute of its own; always the same.

    A sample of a few hundred functions has neither a cloud's many, nor their evenness: what happens
    at once in it is spread over the day.
    """
    drawn = np.random.default_rng(0)
    rows, starts = (drawn.integers(0, most, functions) for most in counts.shape)
    columns = (starts[:, None] + np.arange(counts.shape[1])) % counts.shape[1]
    found: Counts = counts[rows[:, None], columns]
    return found


def merged(times_ms: Mapping[str, Times], models: Sequence[str]) -> Mapping[str, Times]:
    """Functions onto models in turn, the i-th to model i mod n; ascending times."""
    parts: dict[str, list[Times]] = {model: [np.empty(0)] for model in models}
    for index, times in enumerate(times_ms.values()):
        parts[models[index % len(models)]].append(times)
    return {model: np.sort(np.concatenate(found)) for model, found in parts.items()}


def refitted(
    times_ms: Mapping[str, Times],
    models: Sequence[str],
    window_s: float,
    rate_scale: float = 1.0,
    cv_scale: float = 1.0,
) -> Mapping[str, RefittedGamma]:
    """Functions onto models as AlpaServe maps them: in turn, each window refitted by a Gamma.

    The rate and the coefficient of variation of every window are kept, times the two scales.
    """
    return {
        model: RefittedGamma(tuple(_windows(times, window_s, rate_scale, cv_scale)), window_s)
        for model, times in merged(times_ms, models).items()
    }


def _windows(
    times: Times, window_s: float, rate_scale: float, cv_scale: float
) -> Iterator[tuple[float, float]]:
    """Rate and variation of each window of the merged arrivals."""
    if not len(times):
        return
    for index in range(int(times[-1] / 1000.0 / window_s) + 1):
        low, high = np.searchsorted(times, [index * window_s * 1e3, (index + 1) * window_s * 1e3])
        gaps = np.diff(times[low:high])
        mean_ms = float(gaps.mean()) if len(gaps) >= _GAPS else 0.0
        cv = float(gaps.std()) / mean_ms if mean_ms > 0 else 1.0
        yield float(high - low) / window_s * rate_scale, max(_LEAST_CV, cv * cv_scale)


class TraceFiles:
    """Traces by the names of their files in ``folder``, as long as this is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counts = cache(azure_counts)
        self._calls = cache(azure_invocations)
        self._times = cache(own_times)
        self.folded = cache(self._folded)

    def invocations(self, file: str) -> Mapping[str, Times]:
        """Of Azure Functions 2021, times in ms by function."""
        return self._calls(self.folder / file)

    def own_times(self, file: str) -> Mapping[str, Times]:
        """Of one's own, times in ms by model."""
        return self._times(self.folder / file)

    def function(self, file: str, name: str | None) -> BinnedCounts:
        """One function of Azure Functions 2019, the first without a name; 1 request/s on average.

        Raises:
            TableError: the file has none of that name.
        """
        counts = self._counts(self.folder / file)
        one = counts[chosen("function", name, counts, self.folder / file)]
        return folded(np.array([one]), 1, 1.0)[0]

    def _folded(self, file: str, parts: int, skip: int, drawn: int | None) -> list[BinnedCounts]:
        """Functions of Azure Functions 2019 by part; 1 request/s of all parts on average.

        Raises:
            TableError: nothing is left without the ``skip`` largest.
        """
        counts: Counts = np.array(list(self._counts(self.folder / file).values()))
        if skip >= len(counts):
            there = f"fewer than the {len(counts)} functions of {self.folder / file}"
            raise TableError("skip", str(skip), there)
        counts = counts[np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[skip:])]
        return folded(counts if drawn is None else drawn_day(counts, drawn), parts, 1.0)


def chosen(key: str, name: str | None, names: Mapping[str, object], path: Path) -> str:
    """A name that is in a file; the first where none is asked for."""
    if name is None:
        return next(iter(names))
    if name not in names:
        hint = did_you_mean(name, names)
        raise TableError(key, repr(name), f"one of the {len(names)} of {path}{hint}")
    return name
