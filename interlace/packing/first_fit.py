"""Large fleets: each model at its cheapest share, full partitions first, the rest by first fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from interlace.packing.batch_options import BatchOptions, DemandArrays, Ints
from interlace.packing.column_generation import (
    PackingSolution,
    SearchLimits,
    cheapest_gpus_per_rows_per_s,
)
from interlace.packing.deadline_order import slope
from interlace.packing.host_capacity import alone_rows_per_s
from interlace.packing.layouts import Layout
from interlace.packing.pattern import Pattern, PricingProblem
from interlace.packing.queueing import BUSIEST, GATHER, Floats, Turns, lateness
from interlace.packing.solver import Constraint, LinearProgram, solve

#: Open partitions that a remainder is tried in, newest first, and how many at a time.
_OPEN: Final = 80
_ABREAST: Final = 16
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A model at its cheapest share, in the batch that it would have among others there."""

    model: int
    share_pct: int
    batch: int
    largest: int  #: its batch alone
    work_ms: float  #: of a row
    lone_rows_per_s: float  #: what it may be asked for alone
    turn: Turns  #: of one figure each

    @property
    def rows_per_s(self) -> float:
        return float(self.turn.rows_per_ms) * 1000.0

    @property
    def busy(self) -> float:
        return float(self.turn.rows_per_ms) * self.work_ms

    def rest(self, rows_per_s: float) -> ModelLoad:
        """What full partitions leave of it."""
        elsewhere = np.array(float(rows_per_s < self.rows_per_s))
        rate = np.array(rows_per_s / 1000.0)
        return replace(self, turn=self.turn._replace(rows_per_ms=rate, elsewhere=elsewhere))


class OpenPartitions:
    """Partitions of one share while they are filled."""

    def __init__(self, most: int, turns: int) -> None:
        self.needs: list[list[ModelLoad]] = []
        self._busy = np.zeros(most)
        self._count = np.zeros(most, np.int64)
        none = [np.zeros((most, turns))] + [np.ones((most, turns)) for _ in Turns._fields[1:]]
        self._turns = Turns(*(each.copy() for each in none))

    def home(self, need: ModelLoad) -> int:
        """The newest where all are still in time with this one more; else a new one."""
        last = len(self.needs)
        first = max(0, last - _OPEN)
        room = self._busy[first:last] + need.busy <= BUSIEST
        room &= self._count[first:last] < self._turns.batch.shape[1]
        rows = first + np.flatnonzero(room)[::-1]
        for start in range(0, len(rows), _ABREAST):
            tried = rows[start : start + _ABREAST]
            there = Turns(*(each[tried] for each in self._turns))
            at = np.arange(len(tried)), self._count[tried]
            for each, figure in zip(there, need.turn, strict=True):
                each[at] = figure
            holds = (lateness(there) <= 1.0).all(axis=1)
            if holds.any():
                return int(tried[holds.argmax()])
        return last

    def add(self, home: int, need: ModelLoad) -> None:
        """Put it there."""
        if home == len(self.needs):
            self.needs.append([])
        for each, figure in zip(self._turns, need.turn, strict=True):
            each[home, self._count[home]] = figure
        self.needs[home].append(need)
        self._count[home] += 1
        self._busy[home] += need.busy


def search_large(
    problem: PricingProblem,
    rows_per_s: Floats,
    layouts: Sequence[Layout],
    turns: int,
    effort: SearchLimits,
) -> PackingSolution:
    """First fit, decreasing, within each share; then the fewest layouts that hold it all.

    What a relaxation would say is the work at its cheapest, whatever the queues.
    """
    patterns: Counter[Pattern] = Counter()
    rest: dict[int, list[ModelLoad]] = {}
    for need in cheapest(problem, rows_per_s):
        full = int(need.rows_per_s / need.lone_rows_per_s)
        if full:
            patterns[_alone(need, need.lone_rows_per_s)] += full
        left = need.rows_per_s - full * need.lone_rows_per_s
        if left > _NOTHING:
            rest.setdefault(need.share_pct, []).append(need.rest(left))
    for needs in rest.values():
        for one in first_fit(needs, turns):
            patterns[_pattern(one)] += 1
    relaxed = float((cheapest_gpus_per_rows_per_s(problem, len(rows_per_s)) * rows_per_s).sum())
    return joined(patterns, tuple(problem.options), layouts, relaxed, effort)


def first_fit(needs: Sequence[ModelLoad], turns: int) -> list[list[ModelLoad]]:
    """Needs in as few partitions as first fit finds, the busiest first."""
    bins = OpenPartitions(len(needs), turns)
    for need in sorted(needs, key=lambda one: (-one.busy, one.model)):
        bins.add(bins.home(need), need)
    return bins.needs


def cheapest(problem: PricingProblem, rows_per_s: Floats) -> list[ModelLoad]:
    """Each model at the share where the part of an accelerator that it takes alone is least."""
    best: dict[int, tuple[float, ModelLoad]] = {}
    for share_pct, options in problem.options.items():
        for need in _model_loads(options, problem.arrays, rows_per_s):
            cost = share_pct / need.lone_rows_per_s
            if need.model not in best or cost < best[need.model][0]:
                best[need.model] = (cost, need)
    return [need for _, need in best.values()]


def _model_loads(
    options: BatchOptions, arrays: DemandArrays, rows_per_s: Floats
) -> list[ModelLoad]:
    """Every model's best batch at one share, if it can be in time there at all."""
    own_ms, rows = options.latency_ms, options.rows
    alone = alone_rows_per_s(options, arrays)
    slack_ms = np.maximum(arrays.slo_ms[:, None] - 2.0 * own_ms, 0.0)
    gathered = 1.0 + rows_per_s[:, None] / 1000.0 * GATHER * slack_ms
    usable = (rows <= gathered) & (alone > 0.0)
    work_ms = np.where(usable, own_ms / rows, np.inf)
    choice: Ints = work_ms.argmin(axis=1)
    models = np.arange(len(rows))
    last = np.maximum(np.isfinite(own_ms).sum(axis=1) - 1, 0)
    batch, first_ms = rows[models, choice], own_ms[:, 0]
    turns = Turns(
        rows_per_s / 1000.0,
        batch,
        first_ms,
        slope(own_ms[models, choice], first_ms, batch),
        arrays.slo_ms,
        arrays.loss,
        arrays.cv,
        alone[models, choice] / 1000.0,
        np.zeros(len(rows)),
    )
    found = []
    for model in np.flatnonzero(np.isfinite(work_ms.min(axis=1)) & (rows_per_s > 0)).tolist():
        largest, most = int(rows[model, last[model]]), float(alone[model, last[model]])
        work = float(work_ms[model, choice[model]])
        turn = Turns(*(each[model] for each in turns))
        found.append(
            ModelLoad(model, options.share_pct, int(batch[model]), largest, work, most, turn)
        )
    return found


def _pattern(needs: Sequence[ModelLoad]) -> Pattern:
    if len(needs) == 1:
        return _alone(needs[0], needs[0].rows_per_s)
    ordered = sorted(needs, key=lambda one: one.model)
    return Pattern(
        ordered[0].share_pct,
        tuple((one.model, one.batch) for one in ordered),
        tuple(one.rows_per_s for one in ordered),
    )


def _alone(need: ModelLoad, rows_per_s: float) -> Pattern:
    return Pattern(need.share_pct, ((need.model, need.largest),), (rows_per_s,))


def joined(
    patterns: Counter[Pattern],
    shares_pct: Sequence[int],
    layouts: Sequence[Layout],
    relaxed: float,
    effort: SearchLimits,
) -> PackingSolution:
    """The fewest layouts with a partition for every pattern; without a limit, they always exist."""
    needed = Counter({s: 0 for s in shares_pct})
    for pattern, count in patterns.items():
        needed[pattern.share_pct] += count
    total = float(sum(needed.values()))
    rows = []
    for share in shares_pct:
        entry = {i: float(one.count(share)) for i, one in enumerate(layouts) if share in one}
        rows.append(
            Constraint(tuple(entry), tuple(entry.values()), float(needed[share]), float("inf"))
        )
    count = len(layouts)
    program = LinearProgram([1.0] * count, [0.0] * count, [total] * count, [True] * count, rows)
    solution = solve(program, time_limit_s=effort.time_limit_s, nodes=effort.nodes)
    counts = np.rint(np.array(solution.values)).astype(int)
    cuts = tuple(one for one, times in zip(layouts, counts, strict=True) for _ in range(times))
    return PackingSolution(patterns, cuts, np.zeros(0), relaxed, solution.optimal)
