"""Our slowdown: lengths of the batches side by side, and what each known pair adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.perf.interference import Runner
from interlace.perf.slowdown.observation import Observation, Solos

Floats = npt.NDArray[np.float64]

#: Penalties that are tried; the last leaves a constant.
_PENALTIES: Final = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)
#: Distances in a pair's own map over which slowdowns still resemble each other: octaves of the
#: batch and of the neighbour's batch, and points of share.
_REACH: Final = np.array([2.0, 2.0, 30.0])
#: Added to pressures before their ratio: what was not measured has a ratio of one.
_LITTLE: Final = 0.01
_WIDTH: Final = 4
#: Variance of the pair as a whole, and of the measurement, over that of its map.
_COMMON, _NOISE = 4.0, 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """Excess = ``level`` + ``weights`` * features, for each neighbour: holds for any models."""

    level: float
    weights: Floats
    centre: Floats
    scale: Floats

    def excess(self, features: Floats) -> Floats:
        """Slowdown beyond 1 by one neighbour; ``features`` has one row for each."""
        found: Floats = self.level + (features - self.centre) / self.scale @ self.weights
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PairMap:
    """What one pair of models showed beyond the base: kernel ridge over batches and share."""

    places: Floats
    weights: Floats

    def excess(self, place: Floats) -> float:
        """What to add to the base at that place."""
        return float(_kernel(place[None, :], self.places)[0] @ self.weights)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """1 + the excesses of all neighbours: the base for strangers, base and map for known pairs.

    The base knows what any profile has: how long the two batches are (one is slowed less the longer
    it is beside its neighbour; below equal length that makes no difference), the ratios of the L2
    and of the DRAM that they use, and how evenly the accelerator is cut. These features were chosen
    on 750 pairs of four models on a V100, the weights never on what they are tested on.
    """

    base: Base
    pairs: Mapping[tuple[str, str], PairMap]
    solos: Solos

    def __call__(self, runner: Runner, neighbours: Sequence[Runner]) -> float:
        total = 1.0
        for one in neighbours:
            features = np.array([_features(runner, one, self.solos)])
            total += float(self.base.excess(features)[0])
            if known := self.pairs.get((runner.model, one.model)):
                total += known.excess(_place(runner, one))
        return max(1.0, total)


def fit_learned(seen: Sequence[Observation], solos: Solos) -> Learned:
    """The model from observations; its penalty is the best on groups of models left out in turn.

    Raises:
        ValueError: nothing was seen.
    """
    if not seen:
        raise ValueError("a slowdown cannot be learned from no observation: measure some pairs")
    rows = _Rows(seen, solos)
    base = rows.fit(np.ones(len(seen), bool), rows.best_penalty())
    pairs: dict[tuple[str, str], list[int]] = {}
    for index, one in enumerate(seen):
        if len(one.neighbours) == 1:
            key = (one.runner.model, one.neighbours[0].model)
            pairs.setdefault(key, []).append(index)
    left = rows.excess - rows.predicted(base)
    maps = {key: _map([seen[i] for i in which], left[which]) for key, which in pairs.items()}
    return Learned(base, maps, solos)


class _Rows:
    """Observations as arrays: features of each neighbour, and whose row they belong to."""

    def __init__(self, seen: Sequence[Observation], solos: Solos) -> None:
        beside = [(i, one.runner, n) for i, one in enumerate(seen) for n in one.neighbours]
        self.owner = np.array([i for i, _, _ in beside], int)
        self.features = np.array([_features(r, n, solos) for _, r, n in beside]).reshape(-1, _WIDTH)
        self.excess = np.array([one.slowdown - 1.0 for one in seen])
        self.groups = [one.models for one in seen]

    def fit(self, kept: npt.NDArray[np.bool_], penalty: float) -> Base:
        """Ridge on the kept observations; the level is not penalised."""
        mine = kept[self.owner]
        features = self.features[mine]
        if not len(features):
            return Base(0.0, np.zeros(_WIDTH), np.zeros(_WIDTH), np.ones(_WIDTH))
        centre, scale = features.mean(axis=0), features.std(axis=0) + 1e-9
        count = len(self.excess)
        design = np.zeros((count, 1 + _WIDTH))
        columns = np.column_stack([np.ones(len(features)), (features - centre) / scale])
        np.add.at(design, self.owner[mine], columns)
        weight = np.diag([0.0, *[penalty] * _WIDTH]) * kept.sum()
        found = np.linalg.solve(design.T @ design + weight, design.T @ (self.excess * kept))
        return Base(float(found[0]), found[1:], centre, scale)

    def predicted(self, base: Base) -> Floats:
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


def _features(runner: Runner, neighbour: Runner, solos: Solos) -> tuple[float, ...]:
    """How short the runner is beside the neighbour, how hungry, and how even their shares are."""
    own, other = solos(runner), solos(neighbour)
    shorter = min(1.0, other.alone_ms / own.alone_ms)
    l2 = log((own.l2 + _LITTLE) / (other.l2 + _LITTLE))
    dram = log((own.dram + _LITTLE) / (other.dram + _LITTLE))
    part = runner.share_pct / (runner.share_pct + neighbour.share_pct)
    return shorter, l2, dram, (part - 0.5) ** 2


def _place(runner: Runner, neighbour: Runner) -> Floats:
    return np.array([log(runner.batch, 2), log(neighbour.batch, 2), float(runner.share_pct)])


def _kernel(some: Floats, others: Floats) -> Floats:
    distance = ((some[:, None, :] - others[None, :, :]) / _REACH) ** 2
    near: Floats = _COMMON + np.exp(-0.5 * distance.sum(axis=2))
    return near


def _map(seen: Sequence[Observation], left: Floats) -> PairMap:
    places = np.array([_place(one.runner, one.neighbours[0]) for one in seen])
    inner: Floats = _kernel(places, places) + _NOISE * np.eye(len(places))
    weights = np.asarray(np.linalg.solve(inner, left), np.float64)
    return PairMap(places, weights)
