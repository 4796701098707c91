"""How large batches must be to keep up: the round in which all arrivals are served."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple


class AffineCost(NamedTuple):
    """One model's part in a partition: L(b) = ``fixed_ms`` + b * ``row_ms``, and its rate there."""

    fixed_ms: float
    row_ms: float
    rows_per_s: float


def line(single_ms: float, batch: int, batch_ms: float) -> tuple[float, float]:
    """Fixed and row cost of the line through L(1) and L(``batch``), in ms; both at least 0."""
    if batch <= 1:
        return single_ms, 0.0
    row_ms = max(0.0, (batch_ms - single_ms) / (batch - 1))
    return max(0.0, single_ms - row_ms), row_ms


def round_ms(costs: Iterable[AffineCost]) -> float:
    """The shortest round that keeps up: in it every model runs once, with what arrived in a round.

    C = sum(fixed + rate * C * row), so C = sum(fixed) / (1 - sum(rate * row)); infinite where the
    rows alone take all the time. A model's batch in it, rate * C, is the *sustaining batch*: with
    smaller ones the partition falls behind, with larger ones requests wait for nothing.
    """
    fixed_ms, busy = 0.0, 0.0
    for one in costs:
        fixed_ms += one.fixed_ms
        busy += one.rows_per_s / 1000.0 * one.row_ms
    return fixed_ms / (1.0 - busy) if busy < 1.0 else inf
