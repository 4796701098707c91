"""How many rows a batch takes and whom it leaves behind: ``policy.batching``, compiled."""

from __future__ import annotations

from math import ceil
from typing import Final

from interlace.policy import batching
from interlace.sim.fast import queues
from interlace.sim.fast.beliefs import latency_ms, plain_ms
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import World

# The policy's own constants: there is one place to change them.
_TARGET: Final = batching._TARGET
_LEAST: Final = batching._LEAST
_ALONE: Final = batching._ALONE
_ROUNDING_MS: Final = batching._ROUNDING_MS


@compiled
def hosts(world: World, model: int) -> int:
    return int(world.models[model].host_to - world.models[model].host_from)


@compiled
def rows_of(wanted: float, limit: int) -> int:
    return limit if wanted >= limit else max(1, ceil(wanted - 0.5))


@compiled
def sizes(world: World, partition: int, slot: int) -> tuple[int, int, int]:
    """Rows: the limit, what heads are given up for, what is waited for."""
    part, one = world.partitions[partition], world.slots[slot]
    model, limit, several = world.models[one.model], one.limit, hosts(world, one.model)
    sustaining = model.rate_rps / 1000.0 * part.round_ms / several
    if several == 1:
        single_ms = plain_ms(world, slot, 1)
        fixed_ms = single_ms
        if limit > 1:
            row_ms = max(0.0, (plain_ms(world, slot, limit) - single_ms) / (limit - 1))
            fixed_ms = max(0.0, single_ms - row_ms)
        target = sustaining * (1.0 + _ALONE * fixed_ms / model.slo_ms)
        return limit, rows_of(target, limit), 1
    alone = part.slot_to - part.slot_from == 1
    least = rows_of(_LEAST * sustaining, limit) if alone else 1
    return limit, rows_of(_TARGET * sustaining, limit), least


@compiled
def rows_in_time(world: World, slot: int, rows: int, budget_ms: float) -> int:
    """The largest batch of at most ``rows`` within the budget, at least 1."""
    budget_ms -= _ROUNDING_MS
    if latency_ms(world, slot, rows) <= budget_ms:
        return max(rows, 1)
    low, high = 1, max(rows, 1)
    while high - low > 1:
        middle = (low + high) // 2
        if latency_ms(world, slot, middle) <= budget_ms:
            low = middle
        else:
            high = middle
    return low


@compiled
def fits(world: World, slot: int, place: int, target: int) -> bool:
    """True if a batch of ``target``, or all the rest, from that place on ends in time."""
    model = world.slots[slot].model
    need = max(1, min(target, queues.count(world, model) - place))
    left_ms = queues.deadline_ms(world, model, place) - world.state[0].now_ms - _ROUNDING_MS
    return bool(latency_ms(world, slot, need) <= left_ms)


@compiled
def given_up(world: World, slot: int, target: int) -> int:
    """How many heads to drop so that the rest is served in time; 0 if none would do."""
    if fits(world, slot, 0, target):
        return 0
    low, high = 0, queues.count(world, world.slots[slot].model) - 1
    if high < 1 or not fits(world, slot, high, target):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if fits(world, slot, middle, target):
            high = middle
        else:
            low = middle
    return high
