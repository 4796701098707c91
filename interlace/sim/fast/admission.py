"""Who comes in: ``policy.admission``, compiled. Each rule is true if the request may."""

from __future__ import annotations

from math import inf

from interlace.sim.fast import queues
from interlace.sim.fast.beliefs import doubt, latency_ms, plain_ms
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import World
from interlace.sim.fast.sizes import hosts


@compiled
def everyone(world: World, request: int) -> bool:
    """Only the queue's bound limits."""
    model = world.requests[request].model
    return bool(queues.count(world, model) < world.models[model].limit)


@compiled
def in_time(world: World, request: int) -> bool:
    """Whoever is predicted to end in time and makes nobody late, who was let in."""
    if not everyone(world, request):
        return False
    index = world.requests[request].model
    model = world.models[index]
    alone_ms = inf
    for at in range(model.host_from, model.host_to):
        host = world.hosts[at]
        if welcome(world, request, host.partition, host.slot):
            return True
        alone_ms = min(alone_ms, latency_ms(world, host.slot, 1))
    asked = world.requests[request]
    if alone_ms > asked.deadline_ms - asked.arrived_ms:
        doubt(world, index)
    return False


@compiled
def row_ms(world: World, slot: int) -> float:
    """Time one queued row costs a host, shared with its other hosts."""
    batch = world.slots[slot].limit
    several = hosts(world, world.slots[slot].model)
    return plain_ms(world, slot, batch) / float(batch * several)


@compiled
def welcome(world: World, request: int, partition: int, own: int) -> bool:
    """True if this host would end the request in time, and nobody else would be late for it."""
    state, host, asked = world.state[0], world.partitions[partition], world.requests[request]
    own_ms = latency_ms(world, own, 1)
    start_ms = total_ms = max(state.now_ms, host.free_at_ms)
    tail_ms, added_ms = inf, row_ms(world, own)
    for slot in range(host.slot_from, host.slot_to):
        model = world.slots[slot].model
        rows = queues.count(world, model)
        if rows:
            per_row_ms = row_ms(world, slot)
            total_ms += rows * per_row_ms
            start_ms += queues.places_before(world, model, asked.deadline_ms) * per_row_ms
            last_ms = queues.tail_ms(world, model)
            if asked.deadline_ms < last_ms < tail_ms:
                tail_ms = last_ms
    margin_ms = world.models[asked.model].margin_ms if start_ms > state.now_ms else 0.0
    if start_ms + own_ms + margin_ms - asked.deadline_ms > 0:
        return False
    if tail_ms == inf or added_ms <= state.lenience * (tail_ms - state.now_ms):
        return True
    return bool(total_ms + added_ms <= tail_ms)
