"""Column generation: a greedy start, patterns priced by duals, whole numbers at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.packing.layouts import Layout
from interlace.packing.master_problem import MasterProblem, RelaxedSolution
from interlace.packing.pattern import Pattern, PricingProblem
from interlace.packing.queueing import Floats

#: Requests per second below which a rate counts as served: rounding.
NOTHING_RATE: Final = 1e-6
_TOLERANCE: Final = 1e-6
_PROGRESS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How long to search: pricing rounds, columns a round and share, branch-and-bound nodes.

    Nodes are what ends a search, so that it ends alike everywhere; the time limit is for the case
    that a single node takes for ever.
    """

    rounds: int = 30
    columns: int = 4
    dive_rounds: int = 3
    nodes: int = 200
    time_limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class PackingSolution:
    """Patterns with how many of each, what stays unserved, how it was found and how good it is."""

    patterns: Counter[Pattern]
    layouts: tuple[Layout, ...]
    unserved_rows_per_s: Floats
    said: str

    @property
    def accelerators(self) -> int:
        return len(self.layouts)


class ColumnGeneration:
    """The configuration program of one problem: its relaxation at once, whole numbers when asked.

    ``gpus`` is what no choice of patterns can go below, if pricing was exact, infinite where they
    do not serve every model; ``amounts`` is how much of each pattern the relaxation takes.
    """

    def __init__(
        self,
        problem: PricingProblem,
        rows_per_s: Floats,
        layouts: Sequence[Layout],
        effort: SearchLimits,
        kept: Counter[Pattern],
    ) -> None:
        self._problem, self._effort = problem, effort
        worth = cheapest_gpus_per_rows_per_s(problem, len(rows_per_s))
        start = greedy(problem, rows_per_s, worth)
        self._master = MasterProblem(rows_per_s, worth, tuple(problem.options), layouts, kept)
        self._master.add([*start, *kept])
        self._relaxed = _generate(self._master, problem, rows_per_s, effort, effort.rounds)
        self.gpus = float(np.ceil(self._relaxed.accelerators - _TOLERANCE))
        amounts = self._relaxed.amounts.tolist()
        self.amounts = dict(zip(self._master.patterns, amounts, strict=True))

    def whole(self) -> PackingSolution:
        """The fewest accelerators whose patterns serve the rates."""
        _dive(self._master, self._problem, self._relaxed, self._effort)
        return self._chosen(None)

    def within(self, limit: int) -> PackingSolution:
        """As much of the rates as at most ``limit`` accelerators serve."""
        return self._chosen(limit)

    def _chosen(self, limit: int | None) -> PackingSolution:
        master, effort = self._master, self._effort
        choice = master.choose(effort.nodes, effort.time_limit_s, limit)
        used = {p: n for p, n in zip(master.patterns, choice.patterns, strict=True) if n > 0}
        counts = zip(master.layouts, choice.layouts, strict=True)
        cuts = tuple(layout for layout, count in counts for _ in range(count))
        said = (
            f"the configuration program: its relaxation takes {self._relaxed.accelerators:.2f} "
            f"accelerators; {'solved to the end' if choice.proven else 'stopped at its limit'}"
        )
        return PackingSolution(Counter(used), cuts, choice.unserved_rows_per_s, said)


def greedy(problem: PricingProblem, rows_per_s: Floats, price: Floats) -> Counter[Pattern]:
    """Take the pattern of most value for its share, as often as it is full, until all is served."""
    left = rows_per_s.copy()
    taken: Counter[Pattern] = Counter()
    while (left > NOTHING_RATE).any():
        offers = [p for p in problem.best(price, left) if _value(p, price, left) > 0]
        if not offers:
            break
        best = max(offers, key=lambda p: _value(p, price, left) / p.share_pct)
        models = [model for model, _ in best.turns]
        rates = np.array(best.rows_per_s)
        count = max(1, int((left[models] / np.maximum(rates, NOTHING_RATE)).min()))
        left[models] = np.maximum(left[models] - count * rates, 0.0)
        taken[best] += count
    return taken


def cheapest_gpus_per_rows_per_s(problem: PricingProblem, count: int) -> Floats:
    """Accelerators that one request/s of each model takes at the least, alone in a partition."""
    worth = np.full(count, np.inf)
    for share_pct, each in problem.worth().items():
        worth = np.minimum(worth, share_pct / 100.0 * each)
    return np.where(np.isfinite(worth), worth, 0.0)


def _value(pattern: Pattern, price: Floats, left_rows_per_s: Floats) -> float:
    models = [model for model, _ in pattern.turns]
    return float((price[models] * np.minimum(pattern.rows_per_s, left_rows_per_s[models])).sum())


def _generate(
    master: MasterProblem,
    problem: PricingProblem,
    left_rows_per_s: Floats,
    effort: SearchLimits,
    rounds: int,
) -> RelaxedSolution:
    """Add patterns that the duals say are worth more than their share; the relaxed optimum."""
    relaxed = master.relax()
    for _ in range(rounds):
        found = []
        for p in problem.best(relaxed.model_price, left_rows_per_s, effort.columns):
            least = relaxed.share_price[p.share_pct] + _TOLERANCE
            if _value(p, relaxed.model_price, left_rows_per_s) > least:
                found.append(p)
        if not master.add(found):
            break
        relaxed = master.relax()
    return relaxed


def _dive(
    master: MasterProblem, problem: PricingProblem, relaxed: RelaxedSolution, effort: SearchLimits
) -> None:
    """Fix whole patterns of the relaxation one after another, pricing new ones for what is left.

    The patterns that a relaxation likes are full of what there is most of; whole numbers need some
    that fit what the others leave over.
    """
    left = master.rows_per_s.copy()
    before = float("inf")
    # What is left shrinks with every pattern, or the accelerators are used up.
    while (left > NOTHING_RATE).any() and (work := float((left * master.worth).sum())) < before:
        before = work * (1 - _PROGRESS)
        order = np.argsort(-relaxed.amounts, kind="stable")
        fresh = relaxed.amounts - [master.fixed[p] for p in master.patterns]
        taken = {int(i): int(fresh[i]) for i in order if fresh[i] >= 1.0 - _TOLERANCE}
        if not taken and fresh.max(initial=0.0) <= _TOLERANCE:
            break
        taken = taken or {int(fresh.argmax()): 1}
        for index, count in taken.items():
            master.fixed[master.patterns[index]] += count
        left = _left(master)
        relaxed = _generate(master, problem, left, effort, effort.dive_rounds)
    master.fixed.clear()


def _left(master: MasterProblem) -> Floats:
    left = master.rows_per_s.copy()
    for pattern, count in master.fixed.items():
        for (model, _), rate in zip(pattern.turns, pattern.rows_per_s, strict=True):
            left[model] = max(0.0, left[model] - count * rate)
    return np.where(left > master.rows_per_s * _TOLERANCE, left, 0.0)
