"""How an app's SLO is divided among its steps: exact for series-parallel graphs, and known rules.

A budget is the time of a step for waiting and running. No path through the graph takes more than
the SLO. A split minimises the sum of the steps' costs, each a function of its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from interlace.apps.graph import App
from interlace.core.profile import Profile
from interlace.perf.latency import surface

#: The most points of a front of time and cost.
FRONT: Final = 2_000
#: A split may cost so many times the least if it is shorter.
CLOSE: Final = 1.005
#: Parts of the SLO in Nexus' split.
SEGMENTS: Final = 100
Row = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step costs at each batch size, in ascending order of time.

    ``times_ms[i]`` is the time of a row for waiting and running, ``costs[i]`` the part of an
    accelerator that the step's rate takes then.
    """

    times_ms: tuple[float, ...]
    costs: tuple[float, ...]

    def at(self, budget_ms: float) -> float:
        """The least cost within a budget; infinite if none is short enough."""
        fitting = [c for t, c in zip(self.times_ms, self.costs, strict=True) if t <= budget_ms]
        return min(fitting, default=float("inf"))

    @property
    def least_ms(self) -> float:
        return min(self.times_ms)


def row_latencies_ms(profile: Profile, max_batch: int) -> list[float]:
    """The latencies of batches of 1, 2, ... rows on a whole accelerator."""
    known = surface(profile)
    return [known.latency_ms(rows, 100) for rows in range(1, max_batch + 1)]


def step_cost(latencies_ms: Sequence[float], rows_per_s: float) -> StepCost:
    """The cost of a step whose rows arrive at a rate; ``latencies_ms`` are of batches 1, 2, ...

    A batch collects its rows while the one before runs: a row waits up to the longer of both.
    """
    times, costs = [], []
    for batch, run_ms in enumerate(latencies_ms, 1):
        gather_ms = (batch - 1) / rows_per_s * 1000.0 if rows_per_s > 0 else 0.0
        times.append(max(gather_ms, run_ms if batch > 1 else 0.0) + run_ms)
        costs.append(max(rows_per_s, 1e-9) / 1000.0 * run_ms / batch)
    order = sorted(range(len(times)), key=lambda i: times[i])
    return StepCost(tuple(times[i] for i in order), tuple(costs[i] for i in order))


class _Front(NamedTuple):
    """A part of a graph: its cheapest choices by time, ascending, and the steps' times in each."""

    times_ms: Row
    costs: Row
    divide: Callable[[int], dict[int, float]]


def exact(
    readers: Sequence[Sequence[int]], costs: Sequence[StepCost], slo_ms: float
) -> list[float] | None:
    """The cheapest budgets in ms; ``None`` if no split is feasible.

    ``readers`` holds the steps behind each step, in topological order. Dynamic programming over
    the series and parallel parts of the graph, each with its Pareto front of time and cost. A part
    that is neither is cut between the steps without a predecessor and the others, which can only
    tighten it. Fronts of more than ``FRONT`` points are thinned, times rounded up.

    Of splits that cost up to ``CLOSE`` times the least, the shortest is taken. What it leaves of
    the SLO is divided equally, since short steps wait for long ones.
    """
    whole = _solve(frozenset(range(len(costs))), _ancestors(readers), costs, slo_ms)
    if not len(whole.times_ms):
        return None
    enough = int(np.argmax(whole.costs <= CLOSE * whole.costs[-1]))
    divided = whole.divide(enough)
    times_ms = [divided[place] for place in range(len(costs))]
    left_ms = by_work(readers, [1.0] * len(costs), slo_ms - _longest(readers, times_ms))
    return by_work(readers, [a + b for a, b in zip(times_ms, left_ms, strict=True)], slo_ms)


def _ancestors(readers: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    found = [set[int]() for _ in readers]
    for place, behind in enumerate(readers):
        for reader in behind:
            found[reader] |= found[place] | {place}
    return [frozenset(one) for one in found]


def _solve(
    steps: frozenset[int],
    before: Sequence[frozenset[int]],
    costs: Sequence[StepCost],
    slo_ms: float,
) -> _Front:
    if len(steps) == 1:
        (place,) = steps
        return _single(place, costs[place], slo_ms)
    join = _beside
    parts = _components(steps, lambda a, b: a in before[b] or b in before[a])
    if len(parts) == 1:
        join = _behind
        parts = _in_series(steps, before)
    whole = _solve(parts[0], before, costs, slo_ms)
    for one in parts[1:]:
        whole = join(whole, _solve(one, before, costs, slo_ms), slo_ms)
    return whole


def _in_series(steps: frozenset[int], before: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Parts in series: all of each is before the next."""
    parts = _components(steps, lambda a, b: a not in before[b] and b not in before[a])
    if len(parts) == 1:
        first = frozenset(one for one in steps if not before[one] & steps)
        parts = [first, steps - first]
    return sorted(parts, key=lambda part: min(len(before[one] & steps) for one in part))


def _components(steps: frozenset[int], joined: Callable[[int, int], bool]) -> list[frozenset[int]]:
    left, found = set(steps), []
    while left:
        part, edge = set[int](), [left.pop()]
        while edge:
            one = edge.pop()
            part.add(one)
            near = {other for other in left if joined(one, other)}
            left -= near
            edge += near
        found.append(frozenset(part))
    return found


def _single(place: int, cost: StepCost, slo_ms: float) -> _Front:
    times_ms, values = np.array(cost.times_ms), np.array(cost.costs)
    kept = _front(times_ms, values, slo_ms)
    times_ms = times_ms[kept]
    return _Front(times_ms, values[kept], lambda index: {place: float(times_ms[index])})


def _beside(first: _Front, second: _Front, slo_ms: float) -> _Front:
    """Both at the same time: for each time, the cheapest choice of each within it."""
    times_ms = np.union1d(first.times_ms, second.times_ms)
    a = np.searchsorted(first.times_ms, times_ms, "right") - 1
    b = np.searchsorted(second.times_ms, times_ms, "right") - 1
    possible = (a >= 0) & (b >= 0)
    times_ms, a, b = times_ms[possible], a[possible], b[possible]
    costs = first.costs[a] + second.costs[b]
    return _joined(times_ms, costs, a, b, first, second, slo_ms)


def _behind(first: _Front, second: _Front, slo_ms: float) -> _Front:
    """Both one after the other: every pair of choices that nothing dominates."""
    if len(first.times_ms) > len(second.times_ms):
        first, second = second, first  # few long runs are sorted faster than many short ones
    times_ms = np.add.outer(first.times_ms, second.times_ms).ravel()
    costs = np.add.outer(first.costs, second.costs).ravel()
    a, b = np.divmod(np.arange(len(times_ms)), max(1, len(second.times_ms)))
    return _joined(times_ms, costs, a, b, first, second, slo_ms)


def _joined(
    times_ms: Row, costs: Row, a: Indices, b: Indices, first: _Front, second: _Front, slo_ms: float
) -> _Front:
    kept = _front(times_ms, costs, slo_ms)
    a, b = a[kept], b[kept]

    def divide(index: int) -> dict[int, float]:
        return first.divide(int(a[index])) | second.divide(int(b[index]))

    return _Front(times_ms[kept], costs[kept], divide)


def _front(times_ms: Row, costs: Row, slo_ms: float) -> Indices:
    """Where longer is cheaper, within the SLO: indices by ascending time, at most ``FRONT``."""
    within = np.flatnonzero(times_ms <= slo_ms * (1 + 1e-12))
    order = within[np.argsort(times_ms[within], kind="stable")]  # merges runs that ascend
    best = np.minimum.accumulate(np.concatenate(([np.inf], costs[order])))
    order = order[costs[order] < best[:-1]]
    if len(order) > FRONT:  # of each cell of time the cheapest, which is its last
        cells = np.floor(times_ms[order] / slo_ms * FRONT)
        order = order[np.append(cells[1:] != cells[:-1], True)]
    return order


def by_work(readers: Sequence[Sequence[int]], work: Sequence[float], slo_ms: float) -> list[float]:
    """Each step's part of the longest path through it, by ``work``; ones divide it equally."""
    until, behind = [0.0] * len(work), [0.0] * len(work)
    for place, own in enumerate(work):
        for reader in readers[place]:
            until[reader] = max(until[reader], until[place] + own)
    for place in reversed(range(len(work))):
        for reader in readers[place]:
            behind[place] = max(behind[place], behind[reader] + work[reader])
    return [
        slo_ms * own / (before + own + after)
        for before, own, after in zip(until, work, behind, strict=True)
    ]


def segmented(
    readers: Sequence[Sequence[int]], costs: Sequence[StepCost], slo_ms: float
) -> list[float] | None:
    """Exact over times that are whole segments of the SLO, as Nexus' dynamic programming (6.2)."""
    segment_ms = slo_ms / SEGMENTS
    rounded = [
        StepCost(
            tuple(ceil(time_ms / segment_ms) * segment_ms for time_ms in one.times_ms), one.costs
        )
        for one in costs
    ]
    return exact(readers, rounded, slo_ms)


def greedy(
    readers: Sequence[Sequence[int]],
    costs: Sequence[StepCost],
    slo_ms: float,
    per_ms: bool = True,
) -> list[float] | None:
    """From the shortest times, lengthen the step that saves most while the SLO holds.

    It saves most ``per_ms`` by the latency-cost efficiency of Harpagon (arXiv 2412.06161), or most
    in all by the planner of InferLine (section 4.3), each without their choice of hardware.
    """
    budgets = [cost.least_ms for cost in costs]
    if _longest(readers, budgets) > slo_ms:
        return None
    while True:
        best, choice = 0.0, None
        for place, cost in enumerate(costs):
            now = cost.at(budgets[place])
            for time_ms, value in zip(cost.times_ms, cost.costs, strict=True):
                if time_ms <= budgets[place] or value >= now:
                    continue
                gain = (now - value) / (time_ms - budgets[place] if per_ms else 1.0)
                tried = [*budgets[:place], time_ms, *budgets[place + 1 :]]
                if gain > best and _longest(readers, tried) <= slo_ms:
                    best, choice = gain, tried
        if choice is None:
            return budgets
        budgets = choice


def _longest(readers: Sequence[Sequence[int]], times_ms: Sequence[float]) -> float:
    ends = list(times_ms)
    for place, behind in enumerate(readers):
        for reader in behind:
            ends[reader] = max(ends[reader], ends[place] + times_ms[reader])
    return max(ends)


#: Budgets in ms from the readers of each step, the steps' costs and the SLO; ``None`` for none.
Split = Callable[[Sequence[Sequence[int]], Sequence[StepCost], float], list[float] | None]
SPLITS: Final[Mapping[str, Split]] = {
    "exact": exact,
    "equal": lambda readers, costs, slo_ms: by_work(readers, [1.0] * len(costs), slo_ms),
    "work": lambda readers, costs, slo_ms: by_work(readers, [c.least_ms for c in costs], slo_ms),
    "nexus": segmented,
    "inferline": partial(greedy, per_ms=False),
    "harpagon": greedy,
}


class StageBudget(NamedTuple):
    """What a stage is planned for: rows within ``budget_ms``, at a cost in accelerators.

    ``bound`` is its cost if it had all of the SLO; ``cost`` is infinite if no batch is in time.
    """

    stage: str
    model: str
    rows_per_s: float
    budget_ms: float
    cost: float
    bound: float


def stage_budgets(
    app: App,
    latencies_ms: Mapping[str, Sequence[float]],
    rate_rps: float,
    slo_ms: float,
    split: str = "exact",
    prices: Mapping[str, float] | None = None,
) -> list[StageBudget]:
    """Divide an app's SLO among its stages by a rule of ``SPLITS``.

    ``latencies_ms`` are those of batches of 1, 2, ... rows on a whole accelerator, by model.
    ``prices`` are factors on the costs of models; 1 if not named. If the rule finds no split, the
    SLO is divided in proportion to the latencies of one row.
    """
    steps = app.steps
    plain = [step_cost(latencies_ms[one.model], rate_rps * one.rows) for one in steps]
    factors = [(prices or {}).get(one.model, 1.0) for one in steps]
    priced = [
        StepCost(one.times_ms, tuple(cost * factor for cost in one.costs))
        for one, factor in zip(plain, factors, strict=True)
    ]
    budgets = SPLITS[split](app.readers, priced, slo_ms)
    if budgets is None:
        budgets = by_work(app.readers, [latencies_ms[one.model][0] for one in steps], slo_ms)
    return [
        StageBudget(
            step.name,
            step.model,
            rate_rps * step.rows,
            budget_ms,
            cost.at(budget_ms * (1 + 1e-9)),
            cost.at(slo_ms),
        )
        for step, budget_ms, cost in zip(steps, budgets, plain, strict=True)
    ]
