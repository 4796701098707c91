"""Service by deadline: the most urgent model runs next, in a batch of all that has gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.packing.batch_options import BatchOptions, DemandArrays, Ints
from interlace.packing.pattern import Pattern
from interlace.packing.queueing import Floats, busy_limit, required_decay

#: Part of a request's slack in which its batch may fill.
GATHER: Final = 0.4
#: Utilisation that no partition exceeds: batches that start at once are not full.
BUSIEST: Final = 0.97
_LENGTHS: Final = 24
_NOTHING: Final = 1e-12
_LEAST_BUSY: Final = 1e-3
_BISECTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class DeadlinePricing:
    """One share's options where the longest batch beside a model is ``longest_ms``.

    Arrays are models x lengths: the batch with the least work a row that a model can use there,
    that work, and the slack that a request has left after its own batch and one that blocks it.
    """

    options: BatchOptions
    arrays: DemandArrays
    longest_ms: Floats
    choice: Ints
    work_ms: Floats
    slack_ms: Floats
    turns: int
    busiest: float

    def best(self, price: Floats, left_rows_per_s: Floats, count: int = 1) -> list[Pattern]:
        """For each length of batch, a fractional knapsack of the partition's time."""
        wanted = (left_rows_per_s > _NOTHING)[:, None] & np.isfinite(self.work_ms)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.where(wanted, price[:, None] * 1000.0 / self.work_ms, 0.0)
        found = []
        for length in range(len(self.longest_ms)):
            models = np.argsort(-worth[:, length], kind="stable")[: self.turns]
            models = models[worth[models, length] > _NOTHING]
            if len(models):
                found.append(self._filled(models, length, left_rows_per_s))
        value = [float((price[[m for m, _ in p.turns]] * p.rows_per_s).sum()) for p in found]
        order = np.argsort(-np.array(value), kind="stable")[:count]
        return list(dict.fromkeys(found[i] for i in order if value[i] > _NOTHING))

    def of(self, turns: Sequence[tuple[int, int]], rows_per_s: Sequence[float]) -> Pattern | None:
        """These turns at these rates, or as much of them as deadlines leave time for."""
        models = np.array([m for m, _ in turns])
        choices = [self.options.choice(m, batch) for m, batch in turns]
        if None in choices:
            return None
        own_ms = self.options.latency_ms[models, np.array(choices, int)]
        work_ms = own_ms / [batch for _, batch in turns]
        slack_ms = self.arrays.slo_ms[models] - own_ms
        slack_ms -= own_ms.max() / self.arrays.replicas[models]
        if (slack_ms <= 0).any():
            return None
        rates = np.array(rows_per_s, float)
        busy = rates * work_ms / 1000.0
        total = max(float(busy.sum()), _NOTHING)
        bursts_ms = work_ms * self.arrays.cv[models] ** 2 / self.arrays.replicas[models]
        burst_ms = float((busy * bursts_ms).sum()) / total
        decay = float(required_decay(slack_ms, self.arrays.attainment[models]).max())
        part = min(1.0, min(self.busiest, busy_limit(burst_ms, decay)) / total)
        return Pattern(self.options.share_pct, tuple(turns), tuple((rates * part).tolist()))

    def worth(self) -> Floats:
        """Work of a row in its best batch."""
        least: Floats = self.work_ms.min(axis=1) / 1000.0
        return least

    def _filled(self, models: Ints, length: int, left_rows_per_s: Floats) -> Pattern:
        """The models in this order, each with all that is wanted or that there is time for."""
        work_ms = self.work_ms[models, length].tolist()
        wanted = (left_rows_per_s[models] * work_ms / 1000.0).tolist()
        bursts = (self.arrays.cv[models] ** 2 * work_ms / self.arrays.replicas[models]).tolist()
        decay = required_decay(
            self.slack_ms[models, length], self.arrays.attainment[models]
        ).tolist()
        load = _PartitionLoad(self.busiest)
        turns = []
        for index, model in enumerate(models.tolist()):
            busy = load.room(wanted[index], bursts[index], decay[index])
            if busy > _LEAST_BUSY or busy == wanted[index] > 0:
                load.add(busy, bursts[index], decay[index])
                batch = int(self.options.rows[model, self.choice[model, length]])
                turns.append((model, batch, busy * 1000.0 / work_ms[index]))
        turns.sort()
        return Pattern(
            self.options.share_pct,
            tuple((model, batch) for model, batch, _ in turns),
            tuple(rate for _, _, rate in turns),
        )


@dataclass(slots=True)
class _PartitionLoad:
    """One partition while it is filled: its utilisation, the burstiness of its mix of work, and the
    decay of waiting work that its most demanding model needs (``queueing.required_decay``)."""

    busiest: float
    busy: float = 0.0
    burst_ms: float = 0.0  #: work of an arrival times cv^2, weighted by utilisation
    decay: float = 0.0

    def add(self, busy: float, burst_ms: float, decay: float) -> None:
        self.busy += busy
        self.burst_ms += busy * burst_ms
        self.decay = max(self.decay, decay)

    def room(self, wanted: float, burst_ms: float, decay: float) -> float:
        """As much of ``wanted`` as leaves all models here in time, by bisection."""
        if self._holds(wanted, burst_ms, decay):
            return wanted
        low, high = 0.0, wanted
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if self._holds(middle, burst_ms, decay):
                low = middle
            else:
                high = middle
        return low

    def _holds(self, more: float, burst_ms: float, decay: float) -> bool:
        busy = self.busy + more
        mean_ms = (self.burst_ms + more * burst_ms) / max(busy, _NOTHING)
        return busy <= min(self.busiest, busy_limit(mean_ms, max(self.decay, decay)))


@dataclass(frozen=True, slots=True)
class DeadlineOrder:
    """Earliest deadline first and work-conserving, as our dispatcher is.

    A request waits at most for the longest batch of the partition (shared between the ``replicas``
    that its model has), for more urgent work, and for its own batch. What is left of its SLO is
    slack: in ``gather`` of it a batch may fill, in all of it the work before it must be done
    (Lundberg's bound). A partition is busy for at most ``busiest`` of the time. ``turns`` bounds
    the models of one partition.
    """

    turns: int = 8
    gather: float = GATHER
    busiest: float = BUSIEST

    def __call__(self, options: BatchOptions, arrays: DemandArrays) -> DeadlinePricing:
        longest_ms = _lengths(options)
        own_ms = options.latency_ms[:, :, None]
        blocked_ms = longest_ms / arrays.replicas[:, None, None]
        slack_ms = arrays.slo_ms[:, None, None] - own_ms - blocked_ms
        gather_ms = self.gather * slack_ms
        gathered = 1.0 + arrays.rows_per_s[:, None, None] * gather_ms / 1000.0
        usable = (own_ms <= longest_ms) & (slack_ms > 0) & (options.rows[:, :, None] <= gathered)
        work_ms = np.where(usable, own_ms / options.rows[:, :, None], np.inf)
        choice = work_ms.argmin(axis=1)
        models, lengths = np.indices(choice.shape)
        return DeadlinePricing(
            options,
            arrays,
            longest_ms,
            choice,
            work_ms[models, choice, lengths],
            slack_ms[models, choice, lengths],
            self.turns,
            self.busiest,
        )


def _lengths(options: BatchOptions) -> Floats:
    """Longest batches worth a look: from the shortest to the longest there is."""
    known = options.latency_ms[np.isfinite(options.latency_ms)]
    if not len(known):
        return np.ones(1)
    return np.geomspace(float(known.min()), max(float(known.max()), known.min() * 1.001), _LENGTHS)
