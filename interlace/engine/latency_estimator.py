"""Predicted latency of a model: its profile, corrected by what was seen lately."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.perf.latency import surface

#: What makes it the 0.9 quantile of seen over predicted latency, as steps up end at what was seen;
#: the step towards it, and its bounds: by what is seen, and by refusals, which teach nothing.
_QUANTILE: Final = 0.92
_STEP: Final = 0.05
_LOW: Final = 0.01
_LOW_UNSEEN: Final = 0.5
_HIGH: Final = 20.0
#: Mean distance of seen ratios from the estimate: its first value, the weight of a new one, and how
#: many times it a step may be.
_SPREAD: Final = 0.1
_SPREAD_WEIGHT: Final = 0.05
_WIDE: Final = 8.0
_SHAPES: Final = 256
_STALE_MS: Final = 1000.0
_DECAY: Final = 0.97


class LatencyEstimator:
    """Latency tables of one model by share, and correction factors by shape of batch.

    The correction follows about the 0.9 quantile of seen over predicted latency (Robbins and
    Monro's recursion): it rises by most of a step when an execution is slower than predicted and
    falls by the rest of one when it is not. Steps are in proportion to the spread of what is seen
    and never go beyond it, so that latencies that do not vary are predicted exactly.
    """

    def __init__(self, demand: Demand, profile: Profile) -> None:
        self._surface = surface(profile)
        self._max_batch = demand.max_batch
        self._tables: dict[int, tuple[float, ...]] = {}
        self._overall = _Correction(1.0)
        self._by_shape: dict[Hashable, _Correction] = {}
        self._learned_ms = float("-inf")
        self.read_ms = 0.0  #: what batches take longer for weights that are read from the host

    def latency_ms(self, rows: int, share_pct: int, shape: Hashable = None) -> float:
        table = self._tables.get(share_pct)
        if table is None:
            table = self._tables[share_pct] = self._table(share_pct)
        predicted_ms = table[rows] if rows < len(table) else self._far_ms(rows, share_pct)
        return (predicted_ms + self.read_ms) * self._by_shape.get(shape, self._overall).value

    def decay(self, shape: Hashable, now_ms: float) -> None:
        """A request was refused because even alone it seemed too slow.

        Refusals teach nothing, so a pessimistic estimate would never be corrected: it decays
        a little at each, until one request is let through and shows the truth.
        """
        if now_ms - self._learned_ms > _STALE_MS and shape in self._by_shape:
            self._by_shape[shape].decay()
        elif now_ms - self._learned_ms > _STALE_MS:
            self._overall.decay()

    def learn(
        self, rows: int, share_pct: int, shape: Hashable, seen_ms: float, now_ms: float
    ) -> None:
        """Enter one execution that took ``seen_ms``."""
        self._learned_ms = now_ms
        before = self._by_shape.get(shape, self._overall)
        ratio = seen_ms / self.latency_ms(rows, share_pct, shape) * before.value
        if shape not in self._by_shape and len(self._by_shape) < _SHAPES:
            self._by_shape[shape] = _Correction(before.value, before.spread)
        if shape in self._by_shape:
            self._by_shape[shape].follow(ratio)
        self._overall.follow(ratio)

    def _table(self, share_pct: int) -> tuple[float, ...]:
        rows = range(1, self._max_batch + 1)
        return (0.0, *(self._surface.latency_ms(n, share_pct) for n in rows))

    def _far_ms(self, rows: int, share_pct: int) -> float:
        return self._surface.latency_ms(rows, share_pct)


class _Correction:
    """A correction and how far what is seen lies from it: steps are as large as the spread."""

    __slots__ = ("spread", "value")

    def __init__(self, value: float, spread: float = _SPREAD) -> None:
        self.value = value
        self.spread = spread

    def follow(self, ratio: float) -> None:
        """Enter one ratio of seen over predicted latency."""
        off = ratio - self.value
        self.spread += _SPREAD_WEIGHT * (abs(off) - self.spread)
        size = min(self.value, _WIDE * self.spread)
        # A jump far above is followed faster than one step would.
        if off > 0.0:
            step = _STEP * _QUANTILE * max(size, min(off, 10.0 * self.value))
        else:
            step = _STEP * (1.0 - _QUANTILE) * size
        self.value += max(min(off, step), -step)
        self.value = min(max(self.value, _LOW), _HIGH)

    def decay(self) -> None:
        self.value = max(min(self.value, _LOW_UNSEEN), self.value * _DECAY)
