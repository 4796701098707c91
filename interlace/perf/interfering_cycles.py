"""Duty cycles of partitions that slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.perf.duty import CycleTurn, DutyCycle, fit
from interlace.perf.interference import CoRunner, Interference

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
