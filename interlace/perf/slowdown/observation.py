"""What was seen of batches side by side, and what profiles say of each alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from interlace.core.profile import Profiles
from interlace.perf.interference import ConstantFactor, Interference, Runner
from interlace.perf.latency import Quantile, Surface, surface


class Observation(NamedTuple):
    """A batch's latency beside ``neighbours``, over its latency alone."""

    runner: Runner
    neighbours: tuple[Runner, ...]
    slowdown: float

    @property
    def models(self) -> frozenset[str]:
        """Everyone who took part."""
        return frozenset((self.runner.model, *(one.model for one in self.neighbours)))


class Solo(NamedTuple):
    """A batch alone in its partition: its latency, and the L2 and DRAM it uses, each 0..1."""

    alone_ms: float
    l2: float
    dram: float


class Solos(Protocol):
    """What is known of a batch alone."""

    def __call__(self, runner: Runner) -> Solo: ...


class Fitter(Protocol):
    """Makes a predictor from what was seen."""

    def __call__(self, seen: Sequence[Observation]) -> Interference: ...


@dataclass(frozen=True, slots=True)
class FromProfiles:
    """Latency and pressure as profiles have them.

    Pressure is that of the nearest measured batch at the largest measured share that is no larger;
    nothing where none was measured.
    """

    surfaces: Mapping[str, Surface]
    pressures: Mapping[str, Mapping[int, Mapping[int, tuple[float, float]]]]

    def __call__(self, runner: Runner) -> Solo:
        """What is known of the runner alone.

        Raises:
            KeyError: there is no profile of its model.
            ValueError: its share is smaller than any that was measured.
        """
        alone_ms = self.surfaces[runner.model].latency_ms(runner.batch, runner.share_pct)
        by_share = self.pressures[runner.model]
        shares = sorted(by_share)
        if not shares:
            return Solo(alone_ms, 0.0, 0.0)
        by_batch = by_share[shares[max(0, bisect_right(shares, runner.share_pct) - 1)]]
        nearest = min(by_batch, key=lambda batch: (abs(batch - runner.batch), batch))
        return Solo(alone_ms, *by_batch[nearest])


def from_profiles(profiles: Profiles, quantile: Quantile = "median_ms") -> FromProfiles:
    """What profiles say of every runner."""
    pressures: dict[str, dict[int, dict[int, tuple[float, float]]]] = {}
    for model, profile in profiles.items():
        known = pressures.setdefault(model, {})
        for (batch, share), both in profile.pressure.items():
            known.setdefault(share, {})[batch] = both
    return FromProfiles({m: surface(p, quantile) for m, p in profiles.items()}, pressures)


def fit_constant(seen: Sequence[Observation]) -> ConstantFactor:
    """The mean slowdown, whoever runs: what every finer model must beat; 1 if nothing was seen."""
    if not seen:
        return ConstantFactor(1.0)
    return ConstantFactor(max(1.0, sum(one.slowdown for one in seen) / len(seen)))
