"""Service by deadline: the most urgent model runs next, in a batch of all that has gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from interlace.packing.batch_options import BatchOptions, DemandArrays, Ints
from interlace.packing.layouts import Pattern
from interlace.packing.queueing import BUSIEST, GATHER, Bools, Floats, Turns, beyond, lateness
from interlace.packing.single_model_capacity import alone_rows_per_s

_LENGTHS: Final = 16
#: Models of one partition at most.
_TURNS: Final = 8
_NOTHING: Final = 1e-12
_LEAST_BUSY: Final = 1e-3
_HALVINGS: Final = 14
#: How far the straight lines of a pattern's limits are stretched before what is late is looked at.
_STRETCHES: Final = (1.3, 1.15, 1.0, 0.9, 0.75, 0.55, 0.3)
_PARTS: Final = np.linspace(1.0, 0.02, 50)


@dataclass(frozen=True, slots=True)
class Lengths:
    """What each model does under a limit on the length of batches; rows are shares x lengths.

    Arrays are rows x models. They hold the usable batch with the least work a row, that work
    (infinite without one), L(1), the cost of a further row, and the rate that it may be asked for
    alone.
    """

    batch: Floats
    work_ms: Floats
    first_ms: Floats
    row_ms: Floats
    alone_rows_per_ms: Floats
    limits: Floats  #: rows x models x models: the part of one's promise that another's time uses up

    def turns(self, rows: Ints, models: Ints, arrays: DemandArrays, busy: Floats) -> Turns:
        """Models of these rows (..., turns), each with a part of the time if its batch is full."""
        at = rows[..., None], models
        rate = busy / self.work_ms[at]
        return Turns(
            rate,
            self.batch[at],
            self.first_ms[at],
            self.row_ms[at],
            arrays.slo_ms[models],
            arrays.loss[models],
            arrays.cv[models],
            self.alone_rows_per_ms[at],
            arrays.elsewhere(models, rate * 1000.0),
        )


class DeadlinePricing:
    """The pricing problem of column generation: patterns of highest value, of each share.

    Models are served earliest deadline first, work-conserving (`packing.queueing`).
    """

    def __init__(self, options: Sequence[BatchOptions], arrays: DemandArrays) -> None:
        self.options = {one.share_pct: one for one in options}
        self.arrays = arrays

    @cached_property
    def alone_rows_per_s(self) -> Mapping[int, Floats]:
        """Models x choices: what a model alone in a partition may be asked for."""
        return {share: alone_rows_per_s(one, self.arrays) for share, one in self.options.items()}

    @cached_property
    def lengths(self) -> Lengths:
        """All shares' rows, in the order of the options."""
        each = [
            _lengths(one, self.arrays, self.alone_rows_per_s[share])
            for share, one in self.options.items()
        ]
        return Lengths(*(np.concatenate([getattr(e, f) for e in each]) for f in Lengths.__slots__))

    def best(self, price: Floats, left_rows_per_s: Floats, count: int = 1) -> list[Pattern]:
        """For each length of batch, a fractional knapsack of the partition's time.

        ``price`` is the worth of one row/s of each model, ``left_rows_per_s`` how many are wanted:
        more than that is worth nothing.
        """
        known = self.lengths
        wanted = (left_rows_per_s > _NOTHING) & np.isfinite(known.work_ms)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.where(wanted, price * 1000.0 / known.work_ms, 0.0)
            asked = np.where(wanted, left_rows_per_s / 1000.0 * known.work_ms, 0.0)
        models = np.argsort(-worth, axis=1, kind="stable")[:, :_TURNS]
        every = np.arange(len(worth))
        worth, asked = worth[every[:, None], models], asked[every[:, None], models]
        busy = _filled(
            known.limits[every[:, None, None], models[:, :, None], models[:, None, :]], asked
        )
        value = (worth * busy).sum(axis=1).reshape(len(self.options), -1)
        top = np.argsort(-value, axis=1, kind="stable")[:, :count]
        rows = (top + np.arange(len(value))[:, None] * value.shape[1]).ravel()
        rows = rows[value.ravel()[rows] > _NOTHING]
        busy = self._kept(rows, models[rows], asked[rows], worth[rows])
        found = [
            *self._patterns(rows, models[rows], busy),
            *self._lone(price, left_rows_per_s, count),
        ]
        return list(dict.fromkeys(found))

    def of(
        self, share_pct: int, turns: Sequence[tuple[int, int]], rows_per_s: Sequence[float]
    ) -> Pattern | None:
        """These turns at these rates, or as much of them as deadlines leave time for."""
        options = self.options[share_pct]
        models = np.array([m for m, _ in turns])
        choices = [options.choice(m, batch) for m, batch in turns]
        if None in choices:
            return None
        which = np.array(choices, int)
        rates = np.array(rows_per_s, float)
        rows = options.rows[models, which]
        first_ms = options.latency_ms[models, 0]
        row_ms = slope(options.latency_ms[models, which], first_ms, rows)
        if len(turns) == 1:
            which[:] = options.last[models]
        alone = self.alone_rows_per_s[share_pct][models, which] / 1000.0
        arrays = self.arrays
        each = Turns(
            rates / 1000.0 * _PARTS[:, None], rows, first_ms, row_ms,
            arrays.slo_ms[models], arrays.loss[models], arrays.cv[models], alone,
            arrays.elsewhere(models, rates),
        )  # fmt: skip
        late = lateness(Turns(*(np.broadcast_to(one, each[0].shape) for one in each))).max(axis=1)
        if late[-1] > 1.0:
            return None
        holds: Bools = late <= 1.0
        first = int(holds.argmax())
        part = float(_PARTS[first])
        if first and np.isfinite(late[first - 1]):
            over, under = late[first - 1], late[first]
            part += float((1.0 - under) / (over - under)) * float(_PARTS[first - 1] - part)
        return Pattern(share_pct, tuple(turns), tuple((rates * part).tolist()))

    def worth(self) -> Mapping[int, Floats]:
        """Seconds of each share's time that a row of each model takes in its best batch."""
        found = {}
        for share, one in self.options.items():
            usable = self.alone_rows_per_s[share] > 0.0
            found[share] = np.where(usable, one.latency_ms / one.rows, np.inf).min(axis=1) / 1000.0
        return found

    def _kept(self, rows: Ints, models: Ints, asked: Floats, worth: Floats) -> Floats:
        """Each row filled as far as nobody is late: busy parts (rows x turns)."""
        limits = self.lengths.limits[rows[:, None, None], models[:, :, None], models[:, None, :]]
        tries = np.array(_STRETCHES)[:, None, None, None]
        busy = _filled(
            (limits / tries).reshape(-1, *limits.shape[1:]), np.tile(asked, (len(_STRETCHES), 1))
        ).reshape(len(_STRETCHES), *asked.shape)
        busy = np.concatenate((busy, np.where(busy < asked, 0.0, busy)))  # also without parts
        each = self.lengths.turns(rows, models, self.arrays, busy)
        holds: Bools = np.asarray((lateness(each) <= 1.0).all(axis=-1))
        value = np.where(holds, (busy * worth).sum(axis=-1), 0.0)
        chosen = value.argmax(axis=0)
        at = np.arange(len(rows))
        kept: Floats = np.where(holds[chosen, at, None], busy[chosen, at], 0.0)
        return kept

    def _patterns(self, rows: Ints, models: Ints, busy: Floats) -> list[Pattern]:
        known, shares = self.lengths, list(self.options)
        rates = busy * 1000.0 / known.work_ms[rows[:, None], models]
        batch = known.batch[rows[:, None], models].astype(int)
        found = []
        for row, names, sizes, each in zip(
            rows.tolist(), models.tolist(), batch.tolist(), rates.tolist(), strict=True
        ):
            there = sorted((m, b, r) for m, b, r in zip(names, sizes, each, strict=True) if r > 0)
            if len(there) > 1:
                share = shares[row // _LENGTHS]
                turns = tuple((m, b) for m, b, _ in there)
                found.append(Pattern(share, turns, tuple(r for _, _, r in there)))
        return found

    def _lone(self, price: Floats, left_rows_per_s: Floats, count: int) -> list[Pattern]:
        """Each share's most valuable models alone."""
        found = []
        for share, most in self.alone_rows_per_s.items():
            last = self.options[share].last
            most_rows_per_s = most[np.arange(len(most)), last]
            value = price * np.minimum(most_rows_per_s, left_rows_per_s)
            for model in np.argsort(-value, kind="stable")[:count].tolist():
                if value[model] > _NOTHING:
                    rate = float(min(most_rows_per_s[model], left_rows_per_s[model]))
                    batch = int(self.options[share].rows[model, last[model]])
                    found.append(Pattern(share, ((model, batch),), (rate,)))
        return found


def _lengths(options: BatchOptions, arrays: DemandArrays, alone_rows_per_s: Floats) -> Lengths:
    """One share: the longest batches worth a look, from the shortest to the longest there is."""
    known = options.latency_ms[np.isfinite(options.latency_ms)]
    shortest_ms = float(known.min()) if len(known) else 1.0
    longest_ms = max(float(known.max()), shortest_ms * 1.001) if len(known) else 2.0
    length_ms = np.geomspace(shortest_ms, longest_ms, _LENGTHS)[:, None, None]
    own_ms, rows = options.latency_ms, options.rows
    slack_ms = np.maximum(arrays.slo_ms[:, None] - own_ms - length_ms, 0.0)
    gathered = 1.0 + arrays.rows_per_s[:, None] / 1000.0 * GATHER * slack_ms
    usable = (own_ms <= length_ms) & (rows <= gathered) & (alone_rows_per_s > 0.0)
    work = np.where(usable, own_ms / rows, np.inf)
    choice = work.argmin(axis=-1)
    models = np.arange(len(rows))
    work_ms = np.take_along_axis(work, choice[..., None], axis=-1)[..., 0]
    batch, run_ms = rows[models, choice], own_ms[models, choice]
    first_ms = np.broadcast_to(
        np.where(alone_rows_per_s[:, 0] > 0.0, own_ms[:, 0], 1.0), batch.shape
    )
    row_ms = slope(run_ms, first_ms, batch)
    alone = alone_rows_per_s[models, choice] / 1000.0
    found = Lengths(batch, work_ms, first_ms, row_ms, alone, np.zeros(0))
    return Lengths(batch, work_ms, first_ms, row_ms, alone, _limits(found, arrays, length_ms[:, 0]))


def slope(run_ms: Floats, first_ms: Floats, rows: Floats) -> Floats:
    """The cost of a further row on the line from L(1) to L(rows)."""
    with np.errstate(invalid="ignore"):
        slope = (run_ms - first_ms) / np.maximum(rows - 1.0, 1.0)
    return np.where(np.isfinite(slope), np.maximum(slope, 0.0), 0.0)


def _limits(known: Lengths, arrays: DemandArrays, length_ms: Floats) -> Floats:
    """Lines through the ends of what ``lateness`` allows: alone, and next to nothing of one's own.

    Rows x models x models: the part of a model's promise that all of the time in another's full
    batches uses up; of its own on the diagonal.
    """
    there = np.isfinite(known.work_ms)
    work_ms = np.where(there, known.work_ms, 1.0)
    run_ms = known.batch * work_ms
    gathered = np.minimum(known.batch - 1.0, arrays.rows_per_s / 1000.0 * length_ms)
    slack_ms = np.where(there, arrays.slo_ms - known.first_ms - known.row_ms * gathered, _NOTHING)
    slack_ms = np.maximum(slack_ms, _NOTHING)[:, :, None]
    burst_ms = work_ms * (1.0 + arrays.cv**2) / 2.0
    weight = there * arrays.rows_per_s * work_ms
    burst_ms = (weight * burst_ms).sum(axis=1) / np.maximum(weight.sum(axis=1), _NOTHING)
    burst_ms, length_ms = burst_ms[:, None, None], length_ms[:, :, None]
    low, high = np.zeros_like(slack_ms), np.full_like(slack_ms, BUSIEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        late = middle * (
            beyond(slack_ms, length_ms, burst_ms / (2.0 - 2.0 * middle), middle)
            - np.maximum(1.0 - slack_ms / length_ms, 0.0)
        )
        holds = late <= arrays.loss[:, None]
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    after_ms = arrays.slo_ms - arrays.slo_ms[:, None]
    urgent = np.clip(1.0 - after_ms / slack_ms, 0.0, 1.0)
    blocked = np.maximum(1.0 - slack_ms / run_ms[:, None, :], 0.0) / arrays.loss[:, None]
    limits = blocked + urgent / np.maximum(low, _NOTHING) + 1.0 - urgent
    own = 1.0 / np.maximum(known.alone_rows_per_ms * work_ms, _NOTHING)
    diagonal = np.arange(limits.shape[1])
    limits[:, diagonal, diagonal] = own
    return limits


def _filled(limits: Floats, asked: Floats) -> Floats:
    """Rows x turns: in this order, of each all that is asked or that the limits leave."""
    busy, used = np.zeros_like(asked), np.zeros_like(asked)
    whole = np.zeros(len(asked))
    for turn in range(asked.shape[1]):
        row = limits[:, :, turn]
        room = np.where(busy > 0.0, (1.0 - used) / np.maximum(row, _NOTHING), np.inf).min(axis=1)
        room = np.minimum(room, (1.0 - used[:, turn]) / np.maximum(limits[:, turn, turn], _NOTHING))
        room = np.where(whole > 0.0, np.minimum(room, BUSIEST - whole), room)
        more = np.clip(room, 0.0, asked[:, turn])
        more = np.where((more > _LEAST_BUSY) | (more == asked[:, turn]), more, 0.0)
        busy[:, turn] = more
        used += row * more[:, None]
        whole += more
    return busy
