"""What is learned of a model: its latency beside the profile, and the margin of admission."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.perf.latency import surface

#: The value for which the correction follows the 0.9 quantile of measured over predicted latency:
#: steps up end at the measured ratio. Then the step; the least value by measurements, and by
#: refusals, which teach nothing; and the highest value: code that a trial shows at 5 ms may take a
#: minute for other requests.
_QUANTILE: Final = 0.92
_STEP: Final = 0.05
_LOW: Final = 0.01
_LOW_UNSEEN: Final = 0.5
_HIGH: Final = 12_000.0
#: Mean distance of seen ratios from the estimate: its first value, the weight of a new one, and how
#: many times it a step may be.
_SPREAD: Final = 0.1
_SPREAD_WEIGHT: Final = 0.05
_WIDE: Final = 8.0
_SHAPES: Final = 256
_STALE_MS: Final = 1000.0
_DECAY: Final = 0.97
#: As long as no execution was as slow as predicted, each adds this to the factor of steps down.
_HASTE: Final = 0.05
#: Ratios of times that are equal on paper differ by less.
_ROUNDING: Final = 1e-9
#: Executions of a model after which a size that did not run counts as unknown; and the part of a
#: step that the next size takes although it ran just now.
_MEMORY: Final = 256
_COMMON: Final = 0.75


class LatencyEstimator:
    """Latency tables of one model by shape and share, corrected by observed latencies.

    Each table has a correction for every doubling of the batch, because a profile may be wrong for
    some sizes only. It follows about the 0.9 quantile of measured over predicted latency (Robbins
    and Monro's recursion). It rises by most of a step when an execution is slower than predicted,
    and falls by the rest of one when it is not. Steps are in proportion to the spread of measured
    ratios and never pass the last ratio, so constant latencies are predicted exactly.

    Sizes and shares that did not run lately move with those that did. Two laws bound such sizes
    without a trial: no batch takes longer than a larger one, nor longer than its two halves one
    after the other.
    """

    def __init__(self, demand: Demand, profile: Profile) -> None:
        self._surface = surface(profile)
        self._max_batch = demand.max_batch
        self._overall: dict[int, _Table] = {}
        self._by_shape: dict[Hashable, dict[int, _Table]] = {}
        self._runs = 0
        self._learned_ms = float("-inf")
        self.read_ms = 0.0  #: what batches take longer for weights that are read from the host

    def latency_ms(self, rows: int, share_pct: int, shape: Hashable = None) -> float:
        table = self._table(self._by_shape.get(shape, self._overall), share_pct)
        place = table.place(rows)
        predicted_ms = self._predicted_ms(table, rows, share_pct)
        return max(table.least_ms[place], predicted_ms * table.values[place])

    def decay(self, shape: Hashable, now_ms: float) -> None:
        """A request was refused because even alone it seemed too slow.

        Refusals teach nothing, so a pessimistic estimate would never be corrected: it decays
        a little at each, until one request is let through and shows the truth.
        """
        if now_ms - self._learned_ms > _STALE_MS:
            for table in self._by_shape.get(shape, self._overall).values():
                table.decay()

    def learn(
        self, rows: int, share_pct: int, shape: Hashable, seen_ms: float, now_ms: float
    ) -> None:
        """Enter one execution that took ``seen_ms``."""
        self._learned_ms = now_ms
        self._runs += 1
        overall = self._table(self._overall, share_pct)
        ratio = seen_ms / self._predicted_ms(overall, rows, share_pct)
        if shape not in self._by_shape and len(self._by_shape) < _SHAPES:
            self._by_shape[shape] = {pct: one.copy() for pct, one in self._overall.items()}
        for tables in (self._overall, self._by_shape.get(shape)):
            if tables is not None:
                table = self._table(tables, share_pct)
                change = table.follow(rows, ratio, self._runs)
                for other in tables.values():
                    if other is not table and change != 1.0:
                        other.move(rows, change, self._runs)

    def _predicted_ms(self, table: _Table, rows: int, share_pct: int) -> float:
        if rows < len(table.predicted_ms):
            return table.predicted_ms[rows] + self.read_ms
        return self._surface.latency_ms(rows, share_pct) + self.read_ms

    def _table(self, tables: dict[int, _Table], share_pct: int) -> _Table:
        table = tables.get(share_pct)
        if table is None:
            table = _Table(self._surface.table(share_pct, self._max_batch))
            for other in tables.values():  # the best guess for a share that did not run
                table.values = list(other.values)
            table.set_least()
            tables[share_pct] = table
        return table


class _Table:
    """Predicted latencies by rows at one share, and a correction for each doubling of the batch."""

    __slots__ = ("haste", "least_ms", "predicted_ms", "ran", "spread", "values")

    def __init__(self, predicted_ms: tuple[float, ...]) -> None:
        self.predicted_ms = predicted_ms
        self.values = [1.0] * (len(predicted_ms) - 1).bit_length()
        self.least_ms = [0.0] * len(self.values)  #: latency of the next smaller size
        self.ran = [-_MEMORY] * len(self.values)  #: number of the last execution of each size
        self.spread = _SPREAD  #: mean distance of measured ratios from the correction, of it
        self.haste = _HASTE  #: 0 once an execution was as slow as predicted

    def copy(self) -> _Table:
        """A table with these corrections, where nothing ran yet."""
        other = _Table(self.predicted_ms)
        other.values, other.spread = list(self.values), self.spread
        other.set_least()
        return other

    def place(self, rows: int) -> int:
        """The index of the correction for ``rows``."""
        return min(rows.bit_length(), len(self.values)) - 1

    def follow(self, rows: int, ratio: float, run: int) -> float:
        """Enter one ratio of seen over predicted latency; returns the factor of the step."""
        place = self.place(rows)
        off = ratio / self.values[place] - 1.0
        self.spread += _SPREAD_WEIGHT * (abs(off) - self.spread)
        size = min(1.0, _WIDE * self.spread)
        self.haste = self.haste + _HASTE if self.haste and off < -_ROUNDING else 0.0
        change = 1.0
        # A jump far above is followed faster than one step would.
        if off > _ROUNDING:
            change += min(off, _STEP * _QUANTILE * max(size, min(off, 10.0)))
        elif off < -_ROUNDING:
            change += max(off, -_STEP * (1.0 - _QUANTILE) * size * max(1.0, self.haste))
        self.ran[place] = run
        self._step(place, change, run)
        return change

    def move(self, rows: int, change: float, run: int) -> None:
        """Follow a step of another share."""
        place = self.place(rows)
        self._step(place, 1.0 + (change - 1.0) * max(_COMMON, self._unknown(place, run)), run)

    def decay(self) -> None:
        self.values = [max(min(one, _LOW_UNSEEN), one * _DECAY) for one in self.values]
        self.set_least()

    def set_least(self) -> None:
        """Keep each latency above those of smaller batches."""
        least_ms = 0.0
        for place, value in enumerate(self.values):
            self.least_ms[place] = least_ms
            last = min((2 << place) - 1, len(self.predicted_ms) - 1)
            least_ms = max(least_ms, self.predicted_ms[last] * value)

    def _unknown(self, place: int, run: int) -> float:
        return min(1.0, (run - self.ran[place]) / _MEMORY)

    def _step(self, place: int, change: float, run: int) -> None:
        """Move a size, and others the less the better they and those between are known."""
        values, predicted_ms, moved = self.values, self.predicted_ms, change != 1.0
        values[place] = min(max(values[place] * change, _LOW), _HIGH)
        own_ms = predicted_ms[1 << place] * values[place]
        for way in (-1, 1):
            part, low_ms, high_ms = change - 1.0, own_ms, own_ms
            other = place + way
            while 0 <= other < len(values):
                unknown = self._unknown(other, run)
                part *= max(_COMMON, unknown)
                value = values[other] * (1.0 + part)
                first_ms = last_ms = predicted_ms[1 << other]
                if way < 0:
                    low_ms *= 0.5
                    last_ms = predicted_ms[(2 << other) - 1]  # all rows of a smaller size are below
                else:
                    high_ms *= 2.0
                wanted = min(max(value, low_ms / first_ms), high_ms / last_ms)
                if wanted != value:
                    value += unknown * (wanted - value)
                    moved = True
                values[other] = min(max(value, _LOW), _HIGH)
                if change == 1.0 and unknown < 0.5:
                    break  # it bounds those behind it whenever it runs
                other += way
        if moved:
            self.set_least()


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
