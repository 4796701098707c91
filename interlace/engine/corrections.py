"""What is learned of a model: its latency beside the profile, and the margin of admission."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.perf.latency import surface

#: The value for which the correction follows the 0.9 quantile of measured over predicted latency:
#: steps up end at the measured ratio. Then the step; the least value by measurements, and by
#: refusals, which teach nothing; and the highest value.
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

    The correction follows about the 0.9 quantile of measured over predicted latency (Robbins and
    Monro's recursion). It rises by most of a step when an execution is slower than predicted, and
    falls by the rest of one when it is not. Steps are in proportion to the spread of measured
    ratios and never pass the last ratio, so constant latencies are predicted exactly.
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
            batches = range(1, self._max_batch + 1)
            table = (0.0, *(self._surface.latency_ms(n, share_pct) for n in batches))
            self._tables[share_pct] = table
        far = rows >= len(table)
        predicted_ms = self._surface.latency_ms(rows, share_pct) if far else table[rows]
        return (predicted_ms + self.read_ms) * self._by_shape.get(shape, self._overall).value

    def decay(self, shape: Hashable, now_ms: float) -> None:
        """A request was refused because even alone it seemed too slow.

        Refusals teach nothing, so a pessimistic estimate would never be corrected: it decays
        a little at each, until one request is let through and shows the truth.
        """
        if now_ms - self._learned_ms > _STALE_MS:
            self._by_shape.get(shape, self._overall).decay()

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


class _Correction:
    """A correction, and the mean distance of measured ratios from it, which scales its steps."""

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


#: Parts of the SLO. The least is for what the server does not see: the request's way here, and the
#: reply's way back.
_MISS_STEP: Final = 0.05
_DROP_STEP: Final = 0.002
_LEAST: Final = 0.02
_MOST: Final = 0.8
#: So many successes narrow the margin as much as one miss, or one drop, widens it.
_SUCCESSES_PER_MISS: Final = 1500.0
_SUCCESSES_PER_DROP: Final = 20.0


class AdmissionMargin:
    """How long before its deadline a request must be predicted to end to be admitted.

    Predictions err, and a queue filled to the last millisecond turns every error into a missed
    deadline. The outcome of each admitted request steers the margin (a Robbins-Monro recursion on
    the event itself): a miss widens it by one step, a success narrows it by a step over
    ``_SUCCESSES_PER_MISS``. Only the first miss counts against a margin: requests admitted before
    the last widening, such as all those queued behind one stall, do not widen it again.

    A drop is no error: dispatchers give requests up so that more are in time, and a queue from
    which they can choose fills larger batches. So drops have a part of the margin of their own,
    which grows only where they are more than one in ``_SUCCESSES_PER_DROP``.
    """

    __slots__ = ("_drops", "_misses", "_slo_ms", "_widened_ms", "margin_ms")

    def __init__(self, slo_ms: float) -> None:
        self._slo_ms = slo_ms
        self._misses = self._drops = 0.0  # parts of the SLO
        self._widened_ms = float("-inf")
        self.margin_ms = slo_ms * _LEAST

    def met(self) -> None:
        """An accepted request was answered in time."""
        if self._misses or self._drops:
            self._misses = max(0.0, self._misses - _MISS_STEP / _SUCCESSES_PER_MISS)
            self._drops = max(0.0, self._drops - _DROP_STEP / _SUCCESSES_PER_DROP)
            self._set()

    def missed(self, arrived_ms: float, now_ms: float) -> None:
        """A request accepted at ``arrived_ms`` was answered late."""
        if arrived_ms >= self._widened_ms:
            self._misses = min(_MOST - _LEAST, self._misses + _MISS_STEP)
            self._widened_ms = now_ms
            self._set()

    def dropped(self) -> None:
        """An accepted request was dropped: it, or those behind it, had no time."""
        self._drops = min(_MOST - _LEAST, self._drops + _DROP_STEP)
        self._set()

    def _set(self) -> None:
        self.margin_ms = self._slo_ms * min(_MOST, _LEAST + self._misses + self._drops)
