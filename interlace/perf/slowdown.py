"""Our slowdown: what profiles tell of any two models, what one of them showed, what both did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log2
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from interlace.core.profile import Profiles
from interlace.perf.interference import CoRunner
from interlace.perf.latency import Surface, surface

#: L2 and DRAM that are used, each 0..1.
Pressure = tuple[float, float]


class Observation(NamedTuple):
    """A batch's latency beside ``neighbours``, over its latency alone."""

    runner: CoRunner
    neighbours: tuple[CoRunner, ...]
    slowdown: float

    @property
    def models(self) -> frozenset[str]:
        """All models that took part."""
        return frozenset((self.runner.model, *(one.model for one in self.neighbours)))


class Solo(NamedTuple):
    """A batch alone in its partition; ``pressure`` is ``None`` where none was measured."""

    alone_ms: float
    pressure: Pressure | None


class Solos(Protocol):
    """What is known of a batch alone."""

    def __call__(self, runner: CoRunner) -> Solo: ...


@dataclass(frozen=True, slots=True)
class FromProfiles:
    """Latency and pressure as profiles have them.

    Pressure lies on lines between measured batches and shares, and stays what it was beyond them.
    """

    surfaces: Mapping[str, Surface]
    pressures: Mapping[str, Mapping[int, Mapping[int, Pressure]]]

    def __call__(self, runner: CoRunner) -> Solo:
        """What is known of the runner alone.

        Raises:
            KeyError: there is no profile of its model.
            ValueError: its share is smaller than any that was measured.
        """
        alone_ms = self.surfaces[runner.model].latency_ms(runner.batch, runner.share_pct)
        by_share = self.pressures[runner.model]
        if not by_share:
            return Solo(alone_ms, None)
        low, high, part = _around(by_share, runner.share_pct)
        below, above = _at(by_share[low], runner.batch), _at(by_share[high], runner.batch)
        return Solo(alone_ms, _mixed(below, above, part))


def _at(by_batch: Mapping[int, Pressure], batch: int) -> Pressure:
    low, high, part = _around(by_batch, batch)
    return _mixed(by_batch[low], by_batch[high], part)


def _around(known: Iterable[int], at: int) -> tuple[int, int, float]:
    """The known values next to ``at``, and which part of the way it is from the lower one."""
    values = sorted(known)
    above = min(bisect_left(values, at), len(values) - 1)
    if above == 0 or values[above] <= at:
        return values[above], values[above], 0.0
    low, high = values[above - 1], values[above]
    return low, high, (at - low) / (high - low)


def _mixed(low: Pressure, high: Pressure, part: float) -> Pressure:
    return low[0] + (high[0] - low[0]) * part, low[1] + (high[1] - low[1]) * part


def from_profiles(profiles: Profiles) -> FromProfiles:
    """What profiles say of every runner."""
    pressures: dict[str, dict[int, dict[int, Pressure]]] = {}
    for model, profile in profiles.items():
        known = pressures.setdefault(model, {})
        for (batch, share), both in profile.pressure.items():
            known.setdefault(share, {})[batch] = both
    return FromProfiles({m: surface(p, "median_ms") for m, p in profiles.items()}, pressures)


Floats = npt.NDArray[np.float64]

#: Penalties that are tried; the last leaves a constant.
_PENALTIES: Final = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)
#: Added to pressures before their ratio.
_LITTLE: Final = 0.01
_WIDTH: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class RidgeBase:
    """Excess = ``level`` + ``weights`` * features, for each neighbour: holds for any models."""

    level: float
    weights: Floats
    centre: Floats
    scale: Floats

    def excess(self, features: Floats) -> Floats:
        """Slowdown beyond 1 by one neighbour; ``features`` has one row for each."""
        found: Floats = self.level + (features - self.centre) / self.scale @ self.weights
        return found


class ObservationTable:
    """Observations as arrays: features of each neighbour, and whose row they belong to."""

    def __init__(self, seen: Sequence[Observation], solos: Solos) -> None:
        beside = [(i, one.runner, n) for i, one in enumerate(seen) for n in one.neighbours]
        self.owner = np.array([i for i, _, _ in beside], int)
        self.features = np.array([features(r, n, solos) for _, r, n in beside]).reshape(-1, _WIDTH)
        self.excess = np.array([one.slowdown - 1.0 for one in seen])
        self.groups = [one.models for one in seen]

    def fit(self, kept: npt.NDArray[np.bool_], penalty: float) -> RidgeBase:
        """Ridge on the kept observations; the level is not penalised."""
        mine = kept[self.owner]
        chosen = self.features[mine]
        if not len(chosen):
            return RidgeBase(0.0, np.zeros(_WIDTH), np.zeros(_WIDTH), np.ones(_WIDTH))
        centre, scale = chosen.mean(axis=0), chosen.std(axis=0) + 1e-9
        design = np.zeros((len(self.excess), 1 + _WIDTH))
        columns = np.column_stack([np.ones(len(chosen)), (chosen - centre) / scale])
        np.add.at(design, self.owner[mine], columns)
        weight = np.diag([0.0, *[penalty] * _WIDTH]) * kept.sum()
        found = np.linalg.solve(design.T @ design + weight, design.T @ (self.excess * kept))
        return RidgeBase(float(found[0]), found[1:], centre, scale)

    def predicted(self, base: RidgeBase) -> Floats:
        """The base's excess for every observation."""
        total = np.zeros(len(self.excess))
        np.add.at(total, self.owner, base.excess(self.features))
        return total

    def best_penalty(self) -> float:
        """The penalty of least squared error on groups of models that were left out."""
        groups = sorted(set(self.groups), key=sorted)
        if len(groups) < 2:
            return _PENALTIES[-1]
        errors = dict.fromkeys(_PENALTIES, 0.0)
        for group in groups:
            out = np.array([one == group for one in self.groups])
            for penalty in _PENALTIES:
                missed = self.predicted(self.fit(~out, penalty))[out] - self.excess[out]
                errors[penalty] += float((missed**2).sum())
        return min(_PENALTIES, key=lambda penalty: (errors[penalty], -penalty))


def features(runner: CoRunner, neighbour: CoRunner, solos: Solos) -> tuple[float, ...]:
    """How short the runner is beside the neighbour, how hungry, and how even their shares are."""
    own, other = solos(runner), solos(neighbour)
    shorter = min(1.0, other.alone_ms / own.alone_ms)
    l2, dram = _ratios(own.pressure, other.pressure)
    part = runner.share_pct / (runner.share_pct + neighbour.share_pct)
    return shorter, l2, dram, (part - 0.5) ** 2


def _ratios(own: Pressure | None, other: Pressure | None) -> Pressure:
    """Logarithms of the ratios of L2 and of DRAM; 0, as of equals, unless both were measured."""
    if own is None or other is None:
        return 0.0, 0.0
    l2, dram = (log((o + _LITTLE) / (n + _LITTLE)) for o, n in zip(own, other, strict=True))
    return l2, dram


Key = TypeVar("Key", bound=Hashable)

#: Distances over which slowdowns still resemble each other: octaves of the batch and of the
#: neighbour's batch, and points of share.
_REACH: Final = np.array([2.0, 2.0, 30.0])
#: Variance of a map's mean over that of what bends it.
_COMMON: Final = 4.0
#: Variances of one observation over that of the map which are tried; small ones follow closely.
_NOISES: Final = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, slots=True, eq=False)
class ExcessMap:
    """Excess over places, which are rows of log2 batch, log2 neighbour's batch and share."""

    places: Floats
    weights: Floats

    def excess(self, places: Floats) -> Floats:
        """What to add to the base at each of the places; the map's mean far from all it knows."""
        found: Floats = _kernel(places, self.places) @ self.weights
        return found


def place(runner: CoRunner, neighbour: CoRunner) -> tuple[float, float, float]:
    """Where a runner and its neighbour are in a map."""
    return log2(runner.batch), log2(neighbour.batch), float(runner.share_pct)


def fit_maps(
    keys: Sequence[Key], places: Floats, left: Floats, noise: float
) -> dict[Key, ExcessMap]:
    """One map for each key, of what is ``left`` there; the mean of several at one place."""
    return {key: _map(places[which], left[which], noise) for key, which in _by(keys).items()}


def predicted(maps: dict[Key, ExcessMap], keys: Sequence[Key], places: Floats) -> Floats:
    """What the maps add at each place; nothing where the key has none."""
    found = np.zeros(len(keys))
    for key, which in _by(keys).items():
        if key in maps:
            found[which] = maps[key].excess(places[which])
    return found


def best_noise(
    keys: Sequence[Key], places: Floats, left: Floats, groups: Sequence[frozenset[str]]
) -> float | None:
    """The noise of least squared error on groups left out in turn; ``None`` if no map is better."""
    names = sorted(set(groups), key=sorted)
    errors: dict[float | None, float] = {None: float((left**2).sum())}
    errors |= dict.fromkeys(_NOISES, 0.0)
    for name in names:
        out = np.array([one == name for one in groups])
        kept = [key for key, hidden in zip(keys, out, strict=True) if not hidden]
        asked = [key for key, hidden in zip(keys, out, strict=True) if hidden]
        for noise in _NOISES:
            maps = fit_maps(kept, places[~out], left[~out], noise)
            missed = predicted(maps, asked, places[out]) - left[out]
            errors[noise] += float((missed**2).sum())
    return min(errors, key=lambda noise: errors[noise])


def _by(keys: Sequence[Key]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return found


def _map(places: Floats, left: Floats, noise: float) -> ExcessMap:
    alone, owner, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    mean = np.bincount(owner.ravel(), left) / counts
    weights = np.linalg.solve(_kernel(alone, alone) + np.diag(noise / counts), mean)
    return ExcessMap(alone, np.asarray(weights, np.float64))


def _kernel(some: Floats, others: Floats) -> Floats:
    distance = ((some[:, None, :] - others[None, :, :]) / _REACH) ** 2
    near: Floats = _COMMON + np.exp(-0.5 * distance.sum(axis=2))
    return near


#: Variance of one observation over that of its pair's map: measurements hardly err.
_PAIR_NOISE: Final = 0.01

#: The model that is slowed, and its neighbour.
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class LearnedInterference:
    """1 + the excesses of all neighbours, each at least 0 and the sum of three parts.

    ``base``, also for unknown models: the lengths of the two batches, the ratios of the L2 and of
    the DRAM that they use, and how evenly the accelerator is cut. A batch is slowed less the longer
    it is beside its neighbour; below equal length that makes no difference. ``runners``: how the
    model that is slowed departs from the base beside any other. This carries over to unseen pairs;
    empty unless it helped on pairs left out of training. ``pairs``: how a known pair departs from
    both.

    No weight, penalty or map comes from what it is tested on, but the base's features were chosen
    on 750 pairs of four models on a V100. Chosen without the pairs to be predicted, features
    like these are no better there than one constant.
    """

    base: RidgeBase
    runners: Mapping[str, ExcessMap]
    pairs: Mapping[Pair, ExcessMap]
    solos: Solos
    #: Excesses that were asked for: a simulation asks for the same few again and again.
    _asked: dict[tuple[CoRunner, CoRunner], float] = field(
        default_factory=dict, init=False, repr=False
    )

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        total = 1.0
        for one in neighbours:
            if (excess := self._asked.get((runner, one))) is None:
                excess = self._asked[runner, one] = max(0.0, self._excess(runner, one))
            total += excess
        return total

    def _excess(self, runner: CoRunner, one: CoRunner) -> float:
        total = float(self.base.excess(np.array([features(runner, one, self.solos)]))[0])
        at = np.array([place(runner, one)])
        for known in (self.runners.get(runner.model), self.pairs.get((runner.model, one.model))):
            if known:
                total += float(known.excess(at)[0])
        return total


def fit_learned(seen: Sequence[Observation], solos: Solos) -> LearnedInterference:
    """The model from observations; what it shrinks by is best on groups of models left out in turn.

    Maps are made of observations with one neighbour.

    Raises:
        ValueError: nothing was seen.
    """
    if not seen:
        raise ValueError("a slowdown cannot be learned from no observation: measure some pairs")
    rows = ObservationTable(seen, solos)
    base = rows.fit(np.ones(len(seen), bool), rows.best_penalty())
    single = [i for i, one in enumerate(seen) if len(one.neighbours) == 1]
    if not single:
        return LearnedInterference(base, {}, {}, solos)
    left = (rows.excess - rows.predicted(base))[single]
    beside = [(seen[i].runner, seen[i].neighbours[0]) for i in single]
    places = np.array([place(*both) for both in beside])
    slowed = [runner.model for runner, _ in beside]
    noise = best_noise(slowed, places, left, [seen[i].models for i in single])
    runners = {} if noise is None else fit_maps(slowed, places, left, noise)
    left = left - predicted(runners, slowed, places)
    names = [(runner.model, one.model) for runner, one in beside]
    return LearnedInterference(base, runners, fit_maps(names, places, left, _PAIR_NOISE), solos)
