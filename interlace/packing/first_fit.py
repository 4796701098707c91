"""Large fleets: each model at its cheapest share, full partitions first, the rest by first fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from interlace.packing.batch_options import DemandArrays
from interlace.packing.column_generation import (
    PackingSolution,
    SearchLimits,
    cheapest_gpus_per_rows_per_s,
)
from interlace.packing.deadline_order import BUSIEST, GATHER
from interlace.packing.layouts import Layout
from interlace.packing.pattern import Pattern, PricingProblem
from interlace.packing.queueing import Floats, busy_limit
from interlace.packing.solver import Constraint, LinearProgram, solve

#: Open partitions that a remainder is tried in, newest first.
_OPEN: Final = 80
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A model at its cheapest share: how busy it keeps partitions, and how long it may wait."""

    model: int
    share_pct: int
    batch: int
    own_ms: float
    work_ms: float  #: of a row
    busy: float
    burst_ms: float  #: work of an arrival times cv^2, over its replicas
    replicas: float
    patience_ms: float  #: SLO less its own batch
    odds: float  #: ln(1 / (1 - attainment))

    def decay(self, longest_ms: float) -> float:
        """The decay of waiting work that it needs beside batches of ``longest_ms``."""
        slack_ms = self.patience_ms - longest_ms / self.replicas
        return self.odds / slack_ms if slack_ms > 0 else float("inf")

    @property
    def limit(self) -> float:
        """How busy it may keep a partition that it has alone."""
        return min(BUSIEST, busy_limit(self.burst_ms, self.decay(self.own_ms)))


@dataclass(slots=True)
class OpenPartition:
    """A partition being filled."""

    needs: list[ModelLoad] = field(default_factory=list)
    busy: float = 0.0
    longest_ms: float = 0.0

    def takes(self, need: ModelLoad, turns: int) -> bool:
        """True if all models here are still in time with this one more."""
        busy = self.busy + need.busy
        if busy > 1.0 or len(self.needs) >= turns:
            return False
        longest_ms = max(self.longest_ms, need.own_ms)
        every = [*self.needs, need]
        decay = max(one.decay(longest_ms) for one in every)
        burst_ms = sum(one.busy * one.burst_ms for one in every) / busy
        return decay < float("inf") and busy <= min(BUSIEST, busy_limit(burst_ms, decay))

    def add(self, need: ModelLoad) -> None:
        self.needs.append(need)
        self.busy += need.busy
        self.longest_ms = max(self.longest_ms, need.own_ms)

    def pattern(self) -> Pattern:
        """The partition as a pattern."""
        ordered = sorted(self.needs, key=lambda one: one.model)
        return Pattern(
            ordered[0].share_pct,
            tuple((one.model, one.batch) for one in ordered),
            tuple(one.busy * 1000.0 / one.work_ms for one in ordered),
        )


def search_large(
    problems: Mapping[int, PricingProblem],
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
    for need in cheapest(problems, rows_per_s):
        full = int(need.busy / need.limit)
        if full:
            patterns[_alone(need)] += full
        left = need.busy - full * need.limit
        if left > _NOTHING:
            rest.setdefault(need.share_pct, []).append(replace(need, busy=left))
    for needs in rest.values():
        for one in first_fit(needs, turns):
            patterns[one.pattern()] += 1
    relaxed = float((cheapest_gpus_per_rows_per_s(problems, len(rows_per_s)) * rows_per_s).sum())
    return joined(patterns, tuple(problems), layouts, relaxed, effort)


def first_fit(needs: Sequence[ModelLoad], turns: int) -> list[OpenPartition]:
    """Needs in as few partitions as first fit finds, the busiest first."""
    bins: list[OpenPartition] = []
    for need in sorted(needs, key=lambda one: (-one.busy, one.model)):
        home = next((one for one in reversed(bins[-_OPEN:]) if one.takes(need, turns)), None)
        if home is None:
            home = OpenPartition()
            bins.append(home)
        home.add(need)
    return bins


def cheapest(problems: Mapping[int, PricingProblem], rows_per_s: Floats) -> list[ModelLoad]:
    """Each model at the share, batch and queueing margin that cost the least of an accelerator."""
    best: dict[int, tuple[float, ModelLoad]] = {}
    for share_pct, problem in problems.items():
        for need in _model_loads(problem, share_pct, rows_per_s):
            cost = share_pct * need.work_ms / need.limit
            if need.model not in best or cost < best[need.model][0]:
                best[need.model] = (cost, need)
    return [need for _, need in best.values()]


def _model_loads(problem: PricingProblem, share_pct: int, rows_per_s: Floats) -> list[ModelLoad]:
    """Every model's best batch at one share, if it can be in time there at all."""
    options, arrays = problem.options, problem.arrays
    own_ms = options.latency_ms
    slack_ms = arrays.slo_ms[:, None] - own_ms - own_ms / arrays.replicas[:, None]
    gathered = 1.0 + arrays.rows_per_s[:, None] * GATHER * slack_ms / 1000.0
    usable = (slack_ms > 0) & (options.rows <= gathered)
    work_ms = np.where(usable, own_ms / options.rows, np.inf)
    choice = work_ms.argmin(axis=1)
    found = []
    for model in np.flatnonzero(np.isfinite(work_ms.min(axis=1)) & (rows_per_s > 0)).tolist():
        one = int(choice[model])
        batch, ms = int(options.rows[model, one]), float(own_ms[model, one])
        found.append(_model_load(arrays, model, share_pct, batch, ms, float(rows_per_s[model])))
    return found


def _model_load(
    arrays: DemandArrays, model: int, share_pct: int, batch: int, own_ms: float, rows_per_s: float
) -> ModelLoad:
    work_ms, replicas = own_ms / batch, float(arrays.replicas[model])
    return ModelLoad(
        model,
        share_pct,
        batch,
        own_ms,
        work_ms,
        rows_per_s * work_ms / 1000.0,
        work_ms * float(arrays.cv[model]) ** 2 / replicas,
        replicas,
        float(arrays.slo_ms[model]) - own_ms,
        -float(np.log(1.0 - arrays.attainment[model])),
    )


def _alone(need: ModelLoad) -> Pattern:
    return Pattern(
        need.share_pct, ((need.model, need.batch),), (need.limit * 1000.0 / need.work_ms,)
    )


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
