"""What models show beyond the base: kernel ridge over batches and share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import log2
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from interlace.perf.interference import CoRunner

Floats = npt.NDArray[np.float64]
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
