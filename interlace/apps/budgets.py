"""How an app's SLO is divided among its steps: exact for series-parallel graphs, and known rules.

A budget is the time of a step for waiting and running. No path through the graph takes more than
the SLO. A split minimises the sum of the steps' costs, each a function of its budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Steps of the grid on which the SLO is divided.
SLOTS: Final = 400
Row = np.ndarray[tuple[int], np.dtype[np.float64]]


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


class _Part:
    """A part of a graph: the least cost within each number of slots, and how to reach it."""

    def __init__(self, costs: Row, divide: Callable[[int], Mapping[int, int]]) -> None:
        self.costs = costs
        self.divide = divide


def exact(
    readers: Sequence[Sequence[int]], costs: Sequence[StepCost], slo_ms: float
) -> list[float] | None:
    """The cheapest budgets in ms, on a grid of ``SLOTS``; ``None`` if no split is feasible.

    ``readers`` holds the steps behind each step, in topological order. Dynamic programming over
    the series and parallel parts of the graph. A part that is neither is cut between the steps
    without a predecessor and the others, which can only tighten it.
    """
    slot_ms = slo_ms / SLOTS
    whole = _solve(frozenset(range(len(costs))), _ancestors(readers), costs, slot_ms)
    if not np.isfinite(whole.costs[SLOTS]):
        return None
    slots = whole.divide(SLOTS)
    return [slots[place] * slot_ms for place in range(len(costs))]


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
    slot_ms: float,
) -> _Part:
    if len(steps) == 1:
        (place,) = steps
        return _single(place, costs[place], slot_ms)
    parts = _components(steps, lambda a, b: a in before[b] or b in before[a])
    if len(parts) > 1:
        return _beside([_solve(one, before, costs, slot_ms) for one in parts])
    parts = _components(steps, lambda a, b: a not in before[b] and b not in before[a])
    if len(parts) == 1:
        first = frozenset(one for one in steps if not before[one] & steps)
        parts = [first, steps - first]
    parts.sort(key=lambda part: min(len(before[one] & steps) for one in part))
    whole = _solve(parts[0], before, costs, slot_ms)
    for one in parts[1:]:
        whole = _behind(whole, _solve(one, before, costs, slot_ms))
    return whole


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


def _single(place: int, cost: StepCost, slot_ms: float) -> _Part:
    row = np.full(SLOTS + 1, np.inf)
    for time_ms, value in zip(cost.times_ms, cost.costs, strict=True):
        slot = int(np.ceil(time_ms / slot_ms - 1e-9))
        if slot <= SLOTS:
            row[slot] = min(row[slot], value)
    return _Part(np.minimum.accumulate(row), lambda slots: {place: slots})


def _beside(parts: Sequence[_Part]) -> _Part:
    def divide(slots: int) -> Mapping[int, int]:
        return {place: own for part in parts for place, own in part.divide(slots).items()}

    return _Part(np.sum([part.costs for part in parts], axis=0), divide)


def _behind(first: _Part, second: _Part) -> _Part:
    """Both one after the other: the cheapest cut of each number of slots."""
    row, cut = np.full(SLOTS + 1, np.inf), np.zeros(SLOTS + 1, dtype=np.int64)
    for slots in range(SLOTS + 1):
        sums = first.costs[: slots + 1] + second.costs[slots::-1]
        cut[slots] = best = int(np.argmin(sums))
        row[slots] = sums[best]

    def divide(slots: int) -> Mapping[int, int]:
        own = int(cut[slots])
        return {**first.divide(own), **second.divide(slots - own)}

    return _Part(row, divide)


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


def greedy(
    readers: Sequence[Sequence[int]], costs: Sequence[StepCost], slo_ms: float
) -> list[float] | None:
    """From the shortest times, lengthen the step that saves most per ms while the SLO holds.

    The rule of Harpagon's latency-cost efficiency and of InferLine's planner, without their
    hardware choice.
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
                gain = (now - value) / (time_ms - budgets[place])
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
