"""How many rows a batch takes and whom it leaves behind: ``policy.batching``, compiled."""

from __future__ import annotations

from math import ceil
from typing import Final

from interlace.policy import batching
from interlace.sim.fast import queues
from interlace.sim.fast.beliefs import latency_ms
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import World

# The policy's own constants: there is one place to change them.
_FULL: Final = batching._FULL
_ROUNDING_MS: Final = batching._ROUNDING_MS


@compiled
def hosts(world: World, model: int) -> int:
    return int(world.models[model].host_to - world.models[model].host_from)


@compiled
def rows_of(wanted: float, limit: int) -> int:
    return limit if wanted >= limit else max(1, ceil(wanted - 0.5))


@compiled
def sizes(world: World, partition: int, slot: int) -> tuple[int, int, int]:
    """Rows: the limit, what is waited for, what the next batch takes."""
    part, one = world.partitions[partition], world.slots[slot]
    model, limit, several = world.models[one.model], one.limit, hosts(world, one.model)
    if several == 1:
        return limit, 1, limit
    full = rows_of(_FULL * (model.rate_rps / 1000.0 * part.round_ms / several), limit)
    return limit, full if part.slot_to - part.slot_from == 1 else 1, full


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
def given_up(world: World, slot: int, partition: int, limit: int, following: int) -> int:
    """How many heads to drop so that the fewest are lost, now and by the next batch."""
    model, now_ms = world.slots[slot].model, world.state[0].now_ms
    rows = queues.count(world, model)
    best, fewest, dropped = 0, rows + 1, 0
    while dropped < min(rows, fewest):
        most = min(limit, rows - dropped)
        budget_ms = queues.deadline_ms(world, model, dropped) - now_ms
        batch = rows_in_time(world, slot, most, budget_ms)
        run_ms = latency_ms(world, slot, batch)
        if run_ms <= budget_ms - _ROUNDING_MS:
            if batch == most and not dropped:
                return 0
            lost = dropped + lost_next(world, slot, partition, following, dropped + batch, run_ms)
            if lost < fewest:
                best, fewest = dropped, lost
            if batch == most:
                break
        dropped += 1
    return best


@compiled
def lost_next(
    world: World, slot: int, partition: int, following: int, taken: int, run_ms: float
) -> int:
    """How many that are queued now the next batch must drop."""
    index, now_ms = world.slots[slot].model, world.state[0].now_ms
    model, start_ms = world.models[index], now_ms + run_ms
    for at in range(model.host_from, model.host_to):
        host = world.hosts[at].partition
        if host != partition:
            start_ms = min(start_ms, max(now_ms, world.partitions[host].free_at_ms))
    left = queues.count(world, index) - taken
    new = model.rate_rps / 1000.0 * (start_ms - now_ms)
    low, high = 0, left
    while low < high:
        middle = (low + high) // 2
        end_ms = start_ms + latency_ms(world, slot, rows_of(left - middle + new, following))
        if end_ms <= queues.deadline_ms(world, index, taken + middle) - _ROUNDING_MS:
            high = middle
        else:
            low = middle + 1
    return low
