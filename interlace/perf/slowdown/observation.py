"""What was seen of batches side by side, and what profiles say of each alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
