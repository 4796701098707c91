"""Queues of single rows of one SLO: deadlines come in order, so each is a range of an array."""

from __future__ import annotations

from math import inf
from typing import Final

from interlace.core.request import Outcome
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.fairness import lost
from interlace.sim.fast.layout import World

OUTCOMES: Final = (Outcome.OK, Outcome.LATE, Outcome.REFUSED, Outcome.EXPIRED)
OK: Final = 0
LATE: Final = 1
REFUSED: Final = 2
EXPIRED: Final = 3


@compiled
def count(world: World, model: int) -> int:
    """Requests that wait."""
    return int(world.models[model].last - world.models[model].first)


@compiled
def deadline_ms(world: World, model: int, place: int) -> float:
    """The deadline at that place, 0 for the head; infinite past the end."""
    at = world.models[model].first + place
    if at >= world.models[model].last:
        return inf
    return float(world.requests[world.queued[at]].deadline_ms)


@compiled
def tail_ms(world: World, model: int) -> float:
    """The last deadline; infinite if nothing waits."""
    last = world.models[model].last
    if last == world.models[model].first:
        return inf
    return float(world.requests[world.queued[last - 1]].deadline_ms)


@compiled
def push(world: World, request: int) -> None:
    model = world.models[world.requests[request].model]
    world.queued[model.last] = request
    model.last += 1


@compiled
def places_before(world: World, model: int, until_ms: float) -> int:
    """How many that wait have a deadline not after ``until_ms``."""
    first, last = world.models[model].first, world.models[model].last
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if world.requests[world.queued[middle]].deadline_ms <= until_ms:
            low = middle + 1
        else:
            high = middle
    return int(low - first)


@compiled
def answer(world: World, request: int, outcome: int) -> None:
    """Close a request now."""
    one = world.requests[request]
    one.outcome = outcome
    one.answered_ms = world.state[0].now_ms
    world.state[0].open -= 1
    if outcome != OK:
        lost(world, one.model)


@compiled
def give_up(world: World, model: int, requests: int) -> None:
    """Answer that many heads as expired."""
    one = world.models[model]
    for _ in range(min(requests, one.last - one.first)):
        answer(world, world.queued[one.first], EXPIRED)
        one.first += 1


@compiled
def expire(world: World, model: int, before_ms: float) -> None:
    """Answer every request whose deadline is earlier."""
    while deadline_ms(world, model, 0) < before_ms:
        give_up(world, model, 1)
