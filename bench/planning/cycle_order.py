"""Turns in a fixed cycle, as in Nexus and gpulet: a knapsack of turns in every length of cycle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.packing.batch_options import BatchOptions, DemandArrays
from interlace.packing.layouts import Pattern
from interlace.packing.queueing import Floats

Ints = npt.NDArray[np.int64]

_CYCLES: Final = 24
_EXACT: Final = 72
_GRAINS: Final = 120
_NOTHING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class CyclePricing:
    """One share's options, with capacities over a grid of cycle lengths."""

    options: BatchOptions
    arrays: DemandArrays
    duty_ms: Floats
    capacity_rows_per_s: Floats
    contenders: int

    def best(self, price: Floats, left_rows_per_s: Floats, count: int = 1) -> list[Pattern]:
        """The patterns of highest value in up to ``count`` lengths of cycle, best first.

        ``price`` is the worth of one row/s of each model, ``left_rows_per_s`` how many are wanted:
        more than that is worth nothing.
        """
        gain = price[:, None, None] * np.minimum(
            self.capacity_rows_per_s, left_rows_per_s[:, None, None]
        )
        grains = np.ceil(self.options.latency_ms[:, :, None] * _GRAINS / self.duty_ms - 1e-9)
        grains = np.clip(np.nan_to_num(grains, posinf=_GRAINS + 1), 1, _GRAINS + 1).astype(int)
        worth = (gain / grains).max(axis=(1, 2))
        models = np.argsort(-worth, kind="stable")[: self.contenders]
        models = models[worth[models] > _NOTHING]
        if not len(models):
            return []
        return self._filled(models, gain[models], grains[models], count)

    def pattern(self, chosen: list[tuple[int, int]]) -> Pattern:
        """The pattern of (model, choice) turns, with what it really serves in its own cycle."""
        which = tuple(np.array(chosen).T)
        latency_ms = self.options.latency_ms[which]
        duty = np.array([latency_ms.sum()])
        rates = _capacity(self.options, self.arrays, duty)[which][:, 0]
        turns = tuple((m, int(self.options.rows[m, c])) for m, c in chosen)
        return Pattern(
            self.options.share_pct, turns, tuple(rates.tolist()), float(latency_ms.sum())
        )

    def of(self, turns: Sequence[tuple[int, int]]) -> Pattern | None:
        """The cycle of these turns; ``None`` if a batch is not legal."""
        chosen = [self.options.choice(model, batch) for model, batch in turns]
        if None in chosen:
            return None
        return self.pattern(
            [(m, c) for (m, _), c in zip(turns, chosen, strict=True) if c is not None]
        )

    def worth(self) -> Floats:
        """The least part of the accelerator's time that one request/s of each model takes."""
        busy = self.options.latency_ms[:, :, None] / self.duty_ms
        with np.errstate(divide="ignore", invalid="ignore"):
            time = busy / self.capacity_rows_per_s
        time[~np.isfinite(time)] = np.inf
        least: Floats = time.min(axis=(1, 2))
        return least

    def _filled(self, models: Ints, gain: Floats, grains: Ints, count: int) -> list[Pattern]:
        """Multiple-choice knapsack over grains of the cycle, all cycle lengths side by side."""
        cycles = np.arange(len(self.duty_ms))
        value = np.zeros((len(cycles), _GRAINS + 1))
        picks = []
        room = np.arange(_GRAINS + 1)
        for one in range(len(models)):
            best, pick = value, np.full(value.shape, -1)
            for choice in np.flatnonzero(gain[one].max(axis=1) > _NOTHING):
                source = room[None, :] - grains[one, choice][:, None]
                taken = value[cycles[:, None], np.maximum(source, 0)] + gain[one, choice][:, None]
                better = (source >= 0) & (taken > best + _NOTHING)
                best, pick = np.where(better, taken, best), np.where(better, choice, pick)
            value = best
            picks.append(pick)
        order = np.argsort(-value[:, -1], kind="stable")[:count]
        found = (
            self._backtrack(models, grains[:, :, cycle], [p[cycle] for p in picks])
            for cycle in order
            if value[cycle, -1] > _NOTHING
        )
        return list(dict.fromkeys(found))

    def _backtrack(self, models: Ints, grains: Ints, picks: list[Ints]) -> Pattern:
        room, chosen = _GRAINS, []
        for one in reversed(range(len(models))):
            choice = int(picks[one][room])
            if choice >= 0:
                chosen.append((int(models[one]), choice))
                room -= int(grains[one, choice])
        return self.pattern(sorted(chosen))


class CyclePricings:
    """All shares, each for itself."""

    def __init__(self, each: Sequence[CyclePricing], arrays: DemandArrays) -> None:
        self.options = {one.options.share_pct: one.options for one in each}
        self.arrays = arrays
        self._each = {one.options.share_pct: one for one in each}

    def best(self, price: Floats, left_rows_per_s: Floats, count: int = 1) -> list[Pattern]:
        """The patterns of highest value of each share."""
        found = (one.best(price, left_rows_per_s, count) for one in self._each.values())
        return [pattern for patterns in found for pattern in patterns]

    def of(
        self, share_pct: int, turns: Sequence[tuple[int, int]], rows_per_s: Sequence[float]
    ) -> Pattern | None:
        """The cycle of these turns; what it serves follows from the batches alone."""
        return self._each[share_pct].of(turns)

    def worth(self) -> Mapping[int, Floats]:
        """By share, the least part of its time that one request/s of each model takes."""
        return {share_pct: one.worth() for share_pct, one in self._each.items()}


@dataclass(frozen=True, slots=True)
class CycleOrder:
    """Models take turns in a cycle, each with room for what arrives in one (Nexus, gpulet)."""

    contenders: int = 12  #: models that are looked at for one partition

    def __call__(self, options: Sequence[BatchOptions], arrays: DemandArrays) -> CyclePricings:
        each = []
        for one in options:
            duty_ms = _cycles(one, arrays)
            capacity = _capacity(one, arrays, duty_ms)
            each.append(CyclePricing(one, arrays, duty_ms, capacity, self.contenders))
        return CyclePricings(each, arrays)


def _capacity(options: BatchOptions, arrays: DemandArrays, duty_ms: Floats) -> Floats:
    """Rate that each choice serves in cycles of ``duty_ms``: models x choices x cycles.

    Nexus' rule, for arrivals as even as their rate: full batches if what comes in one cycle is
    in time after the next, duty + L(b) <= SLO (gpulet section 2.2).
    """
    left_ms = (arrays.slo_ms[:, None] - options.latency_ms) * arrays.replicas[:, None]
    own_ms = options.latency_ms[:, :, None]
    # A batch cannot take longer than the cycle it is in.
    legal = (own_ms <= duty_ms * (1 + 1e-9)) & (left_ms[:, :, None] >= duty_ms * (1 - 1e-9))
    return np.where(legal, options.rows[:, :, None] * 1000.0 / duty_ms, 0.0)


def _cycles(options: BatchOptions, arrays: DemandArrays) -> Floats:
    """Lengths from the shortest single turn to the longest that any model can wait.

    Beside an even scale, those at which some batch just fills a cycle alone or is just in time:
    there a pattern begins or ceases to be legal.
    """
    known = np.isfinite(options.latency_ms)
    if not known.any():
        return np.ones(1)
    patience = (arrays.slo_ms[:, None] - options.latency_ms) * arrays.replicas[:, None]
    shortest_ms = float(options.latency_ms[known].min())
    longest_ms = max(float(patience[known].max()), shortest_ms * 1.001)
    exact = np.concatenate((options.latency_ms[known], patience[known]))
    exact = np.unique(exact[(exact >= shortest_ms) & (exact <= longest_ms)].round(9))
    exact = exact[:: max(1, len(exact) // _EXACT)]
    return np.unique(np.concatenate((np.geomspace(shortest_ms, longest_ms, _CYCLES), exact)))
