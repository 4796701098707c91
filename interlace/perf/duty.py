"""Duty cycles: whether loads fit one, alone or slowed by neighbours (Nexus; gpulet section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from interlace.perf.interference import CoRunner, Interference

#: Rates and times that are equal on paper may differ by this much in floating point.
_ALLOWANCE = 1e-9


@dataclass(frozen=True, slots=True)
class CycleTurn:
    """One model's load on a partition; ``latency_ms[b]`` is L(b) at its share, 0 <= b."""

    model: str
    rows_per_s: float
    slo_ms: float
    latency_ms: tuple[float, ...]

    @property
    def max_batch(self) -> int:
        return len(self.latency_ms) - 1

    def batch(self, duty_ms: float) -> int:
        """Rows that arrive in a cycle, at least one."""
        return max(1, ceil(self.rows_per_s * duty_ms / 1000.0 - _ALLOWANCE))


@dataclass(frozen=True, slots=True)
class DutyCycle:
    """A cycle of ``duty_ms`` with one batch per turn; ``busy_ms`` of it is execution."""

    duty_ms: float
    batches: tuple[int, ...]
    busy_ms: float

    @property
    def occupancy(self) -> float:
        return self.busy_ms / self.duty_ms


def shortest(turns: Sequence[CycleTurn]) -> DutyCycle | None:
    """The shortest cycle that serves every turn's rate within its SLO, if any.

    In each cycle model i runs one batch b_i = ceil(rate_i * duty). A request waits at most one
    cycle and one execution, so duty + L_i(b_i) <= SLO_i; the executions fit: sum L_i(b_i) <= duty.
    The execution time of a cycle is a step function that rises with its length. So the shortest
    cycle is the least fixed point of duty = sum L_i(ceil(rate_i * duty)). It is reached from below,
    as in response-time analysis (Joseph and Pandya, 1986). If the SLOs do not hold there, they hold
    in no longer cycle.
    """
    if not turns or any(one.max_batch < 1 for one in turns):
        return None
    last_ms = min(one.slo_ms - one.latency_ms[1] for one in turns) * (1 + _ALLOWANCE)
    duty_ms = sum(one.latency_ms[1] for one in turns)
    while duty_ms <= last_ms:
        batches = tuple(one.batch(duty_ms) for one in turns)
        if any(b > one.max_batch for b, one in zip(batches, turns, strict=True)):
            return None
        runs_ms = [one.latency_ms[b] for b, one in zip(batches, turns, strict=True)]
        busy_ms = sum(runs_ms)
        if busy_ms <= duty_ms * (1 + _ALLOWANCE):
            inside = all(
                duty_ms + run_ms <= one.slo_ms * (1 + _ALLOWANCE)
                for run_ms, one in zip(runs_ms, turns, strict=True)
            )
            return DutyCycle(max(duty_ms, busy_ms), batches, busy_ms) if inside else None
        duty_ms = busy_ms
    return None


def fit(turns: Sequence[CycleTurn]) -> DutyCycle | None:
    """The cycle of lowest occupancy that serves every turn's rate within its SLO, if any.

    Exact under the rule of ``shortest``: batches change only at duty = b / rate_i, and between two
    such points the longest cycle that the SLOs allow has the lowest occupancy.
    """
    first = shortest(turns)
    if first is None:
        return None
    points = _breakpoints(turns, first.duty_ms)
    busy_ms, longest_ms = np.zeros(len(points)), points.copy()
    rows = []
    for one in turns:
        batch = np.maximum(1, np.ceil(one.rows_per_s * points / 1000.0 - _ALLOWANCE))
        fits = batch <= one.max_batch
        batch = np.where(fits, batch, 0).astype(np.int64)
        runs_ms = np.where(fits, np.array(one.latency_ms)[batch], np.inf)
        busy_ms += runs_ms
        np.minimum(longest_ms, one.slo_ms - runs_ms, out=longest_ms)
        rows.append(batch)
    inside = busy_ms <= longest_ms * (1 + _ALLOWANCE)
    if not inside.any():
        return first
    occupancy = np.where(inside, busy_ms / np.where(inside, longest_ms, 1.0), np.inf)
    best = int(np.argmin(occupancy))
    if occupancy[best] >= first.occupancy:
        return first
    batches = tuple(int(row[best]) for row in rows)
    busy = float(busy_ms[best])
    return DutyCycle(max(float(longest_ms[best]), busy), batches, busy)


def _breakpoints(turns: Sequence[CycleTurn], shortest_ms: float) -> np.ndarray:
    longest_ms = min(one.slo_ms - one.latency_ms[1] for one in turns)
    points = [np.array([longest_ms])]
    for one in turns:
        if one.rows_per_s * longest_ms >= 1000.0:  # else no batch fills within the longest
            points.append(np.arange(1, one.max_batch + 1) * (1000.0 / one.rows_per_s))
    every = np.unique(np.concatenate(points))
    kept = every[(every >= shortest_ms) & (every <= longest_ms)]
    return kept if len(kept) else np.array([shortest_ms])


def room_rows_per_s(turns: Sequence[CycleTurn], newcomer: CycleTurn) -> float:
    """The highest rate of ``newcomer`` (its own is ignored) that fits a cycle beside ``turns``.

    Exact: for each of its batches the shortest cycle is the least fixed point of duty = L(b) +
    sum L_i(ceil(rate_i * duty)), and the rate b / duty is highest there.
    """
    best_rows_per_s = 0.0
    duty_ms = sum(one.latency_ms[1] for one in turns)
    for batch in range(1, newcomer.max_batch + 1):
        run_ms = newcomer.latency_ms[batch]
        found_ms = _beside(turns, run_ms, newcomer.slo_ms - run_ms, duty_ms)
        if found_ms is None:
            break
        duty_ms = found_ms
        best_rows_per_s = max(best_rows_per_s, 1000.0 * batch / duty_ms)
    return best_rows_per_s * (1 - _ALLOWANCE)


def _beside(
    turns: Sequence[CycleTurn], run_ms: float, last_ms: float, from_ms: float
) -> float | None:
    """The shortest cycle up to ``last_ms`` with ``turns`` and ``run_ms`` of another's."""
    duty_ms = max(from_ms, run_ms)
    while duty_ms <= last_ms:
        busy_ms = run_ms
        for one in turns:
            batch = one.batch(duty_ms)
            if batch > one.max_batch or duty_ms + one.latency_ms[batch] > one.slo_ms:
                return None
            busy_ms += one.latency_ms[batch]
        if busy_ms <= duty_ms:
            return duty_ms
        duty_ms = busy_ms
    return None


def saturated_rows_per_s(alone: CycleTurn) -> float:
    """The highest rate a partition serves when it has the model alone: 2 L(b) <= SLO (Nexus)."""
    rates = [
        1000.0 * batch / run_ms
        for batch, run_ms in enumerate(alone.latency_ms)
        if batch and 2.0 * run_ms <= alone.slo_ms
    ]
    return max(rates, default=0.0)


#: Batches that have not settled by then do not settle.
_ROUNDS: Final = 8

#: A share and the turns in it.
PartitionTurns = tuple[int, Sequence[CycleTurn]]


def slowed(
    turn: CycleTurn,
    share_pct: int,
    beside: Sequence[Sequence[CoRunner]],
    interference: Interference,
) -> CycleTurn:
    """The turn with L(b) times the factor of its worst neighbours, never falling in b.

    ``beside`` holds, for each other partition of the accelerator, those that take turns there:
    only one of them runs at a time, and any of them may.
    """
    if not any(beside):
        return turn
    table, high_ms = [0.0], 0.0
    for batch in range(1, turn.max_batch + 1):
        runner = CoRunner(turn.model, batch, share_pct)
        worst = [_worst(runner, there, interference) for there in beside if there]
        high_ms = max(high_ms, turn.latency_ms[batch] * interference(runner, worst))
        table.append(high_ms)
    return CycleTurn(turn.model, turn.rows_per_s, turn.slo_ms, tuple(table))


def _worst(runner: CoRunner, there: Sequence[CoRunner], interference: Interference) -> CoRunner:
    return max(there, key=lambda neighbour: interference(runner, [neighbour]))


def runners(load: PartitionTurns, cycle: DutyCycle) -> list[CoRunner]:
    """The batches that take turns in a partition, as its cycle has them."""
    share_pct, turns = load
    return [
        CoRunner(turn.model, batch, share_pct)
        for turn, batch in zip(turns, cycle.batches, strict=True)
    ]


def settled(loads: Sequence[PartitionTurns], interference: Interference) -> list[DutyCycle] | None:
    """Cycles of all partitions of one accelerator, each slowed by the batches of the others.

    A batch slows its neighbours, whose batches then change: repeated until none does. ``None`` if
    some partition cannot serve its rates in time beside the others, or batches do not settle.
    """
    cycles = [fit(turns) for _, turns in loads]
    for _ in range(_ROUNDS):
        known = [c for c in cycles if c is not None]
        if len(known) < len(cycles):
            return None
        running = [runners(load, cycle) for load, cycle in zip(loads, known, strict=True)]
        cycles = [
            fit(
                [
                    slowed(turn, share_pct, running[:index] + running[index + 1 :], interference)
                    for turn in turns
                ]
            )
            for index, (share_pct, turns) in enumerate(loads)
        ]
        if [c and c.batches for c in cycles] == [c.batches for c in known]:
            return [c for c in cycles if c is not None]
    return None
