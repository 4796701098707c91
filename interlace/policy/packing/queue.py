"""Turns by deadline: who is most urgent runs next, in a batch as large as has gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.perf.queueing import Floats, busy_limit
from interlace.policy.packing.options import Ints, Market, Options
from interlace.policy.packing.pattern import Pattern

_LENGTHS: Final = 24
_NOTHING: Final = 1e-12


@dataclass(frozen=True, slots=True)
class QueueShop:
    """One share's options where the longest batch beside a model is ``longest_ms``.

    Arrays are models x lengths: the batch with the least work a row that a model can use there, that
    work, and the slack that a request has left after its own batch and one that blocks it.
    """

    options: Options
    market: Market
    longest_ms: Floats
    choice: Ints
    work_ms: Floats
    slack_ms: Floats
    turns: int

    def best(self, price: Floats, left_rps: Floats, count: int = 1) -> list[Pattern]:
        """For each length of batch, a fractional knapsack of the partition's time."""
        wanted = (left_rps > _NOTHING)[:, None] & np.isfinite(self.work_ms)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.where(wanted, price[:, None] * 1000.0 / self.work_ms, 0.0)
        found = []
        for length in range(len(self.longest_ms)):
            models = np.argsort(-worth[:, length], kind="stable")[: self.turns]
            models = models[worth[models, length] > _NOTHING]
            if len(models):
                found.append(self._filled(models, length, left_rps))
        value = [float((price[[m for m, _ in p.turns]] * p.rates_rps).sum()) for p in found]
        order = np.argsort(-np.array(value), kind="stable")[:count]
        return list(dict.fromkeys(found[i] for i in order if value[i] > _NOTHING))

    def of(self, turns: Sequence[tuple[int, int]], rates_rps: Sequence[float]) -> Pattern | None:
        """These turns at these rates, or as much of them as deadlines leave time for."""
        models = np.array([m for m, _ in turns])
        choices = [self.options.choice(m, batch) for m, batch in turns]
        if None in choices:
            return None
        own_ms = self.options.latency_ms[models, np.array(choices, int)]
        work_ms = own_ms / [batch for _, batch in turns]
        slack_ms = self.market.slo_ms[models] - own_ms
        slack_ms -= own_ms.max() / self.market.replicas[models]
        if (slack_ms <= 0).any():
            return None
        rates = np.array(rates_rps, float)
        busy = rates * work_ms / 1000.0
        limit = _limit(busy, work_ms, slack_ms, self.market, models)
        part = min(1.0, limit / max(busy.sum(), _NOTHING))
        return Pattern(self.options.share_pct, tuple(turns), tuple((rates * part).tolist()))

    def worth(self) -> Floats:
        """Work of a row in its best batch."""
        least: Floats = self.work_ms.min(axis=1) / 1000.0
        return least

    def _filled(self, models: Ints, length: int, left_rps: Floats) -> Pattern:
        """The models in this order, each with all that is wanted or that there is time for."""
        work_ms, slack_ms = self.work_ms[models, length], self.slack_ms[models, length]
        wanted = left_rps[models] * work_ms / 1000.0
        room = _limit(wanted, work_ms, slack_ms, self.market, models)
        for _ in range(2):  # the limit depends on who is in, and who is in on the limit
            before = np.concatenate(([0.0], np.cumsum(wanted)[:-1]))
            busy = np.clip(room - before, 0.0, wanted)
            room = _limit(busy, work_ms, slack_ms, self.market, models)
        kept = busy > 1e-6
        models, rates = models[kept], (busy[kept] * 1000.0 / work_ms[kept]).tolist()
        batches = self.options.rows[models, self.choice[models, length]].astype(int).tolist()
        turns = sorted(zip(models.tolist(), batches, rates, strict=True))
        return Pattern(
            self.options.share_pct,
            tuple((model, batch) for model, batch, _ in turns),
            tuple(rate for _, _, rate in turns),
        )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Earliest deadline first, nothing waits while the partition is idle: our dispatcher.

    A request waits at most for the longest batch of the partition (shared between the ``replicas``
    that its model has), for more urgent work, and for its own batch. A batch gathers from all that
    arrives while one can wait; work that waits is Kingman's. ``turns`` bounds the models of one
    partition.
    """

    turns: int = 8

    def __call__(self, options: Options, market: Market) -> QueueShop:
        longest_ms = _lengths(options)
        own_ms = options.latency_ms[:, :, None]
        blocked_ms = longest_ms / market.replicas[:, None, None]
        slack_ms = market.slo_ms[:, None, None] - own_ms - blocked_ms
        gathered = 1.0 + market.rate_rps[:, None, None] * slack_ms / 1000.0
        usable = (own_ms <= longest_ms) & (slack_ms > 0) & (options.rows[:, :, None] <= gathered)
        work_ms = np.where(usable, own_ms / options.rows[:, :, None], np.inf)
        choice = work_ms.argmin(axis=1)
        models, lengths = np.indices(choice.shape)
        return QueueShop(
            options,
            market,
            longest_ms,
            choice,
            work_ms[models, choice, lengths],
            slack_ms[models, choice, lengths],
            self.turns,
        )


def _limit(busy: Floats, work_ms: Floats, slack_ms: Floats, market: Market, models: Ints) -> float:
    """How busy the partition may be with this mix: what its least patient member allows."""
    share = busy / max(float(busy.sum()), _NOTHING)
    mean_ms = float((share * work_ms * market.cv[models] ** 2).sum())
    present = busy > _NOTHING
    limits = busy_limit(np.full(len(busy), mean_ms), slack_ms, market.attainment[models])
    return float(limits[present].min()) if present.any() else 1.0


def _lengths(options: Options) -> Floats:
    """Longest batches worth a look: from the shortest to the longest there is."""
    known = options.latency_ms[np.isfinite(options.latency_ms)]
    if not len(known):
        return np.ones(1)
    return np.geomspace(float(known.min()), max(float(known.max()), known.min() * 1.001), _LENGTHS)
