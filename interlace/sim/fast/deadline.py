"""Earliest deadline first, with company waited for: ``policy.dispatchers.deadline``, compiled."""

from __future__ import annotations

from math import inf

from interlace.sim.fast import queues
from interlace.sim.fast.beliefs import latency_ms
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.fairness import contend, owed
from interlace.sim.fast.launching import decide, forget_taken
from interlace.sim.fast.layout import World
from interlace.sim.fast.sizes import given_up, hosts, rows_in_time, sizes


@compiled
def deadline(world: World, gpu: int) -> None:
    """Decide what starts on one accelerator, and when to ask again."""
    state, one = world.state[0], world.gpus[gpu]
    state.launches, state.wish_ms = 0, inf
    forget_taken(world, gpu)
    contend(world, gpu)
    for at in range(one.part_from, one.part_to):
        partition = world.gpu_partitions[at]
        if world.partitions[partition].model >= 0:
            continue
        claims = collect(world, partition)
        if claims:
            launch(world, partition, claims)


@compiled
def collect(world: World, partition: int) -> int:
    """Enter what may start here now into ``claims``, most urgent first; how many there are."""
    state, part, found = world.state[0], world.partitions[partition], 0
    for slot in range(part.slot_from, part.slot_to):
        model = world.slots[slot].model
        left = queues.count(world, model) - world.taken[model]
        if left <= 0:
            continue
        limit, least, following = sizes(world, partition, slot)
        due_ms = queues.deadline_ms(world, model, 0)
        if left < least:
            run_ms = latency_ms(world, slot, left + 1)
            latest_ms = due_ms - run_ms - world.models[model].margin_ms
            if state.now_ms < latest_ms:
                state.wish_ms = min(state.wish_ms, latest_ms)
                continue
        claim(world, found, slot, due_ms, limit, following)
        found += 1
    return found


@compiled
def claim(world: World, found: int, slot: int, due_ms: float, limit: int, following: int) -> None:
    """Put a claim at its place among those before it."""
    rank = world.models[world.slots[slot].model].rank
    place = found
    while place > 0:
        before = world.claims[place - 1]
        if (before.deadline_ms, before.rank) <= (due_ms, rank):
            break
        after = world.claims[place]
        after.deadline_ms, after.rank, after.slot = before.deadline_ms, before.rank, before.slot
        after.run_ms, after.latest_ms = before.run_ms, before.latest_ms
        after.limit, after.following = before.limit, before.following
        place -= 1
    one = world.claims[place]
    one.deadline_ms, one.rank, one.slot = due_ms, rank, slot
    one.limit, one.following = limit, following
    one.run_ms = latency_ms(world, slot, 1)
    one.latest_ms = due_ms - one.run_ms


@compiled
def launch(world: World, partition: int, claims: int) -> None:
    """Decide which claim starts, with how many rows, and how many heads it gives up."""
    now_ms = world.state[0].now_ms
    chosen = choose(world, claims)
    first = owed(world, chosen, claims)
    is_owed = first >= 0
    if not is_owed:
        first = chosen
    one = world.claims[first]
    slot, model = one.slot, world.slots[one.slot].model
    others_ms = inf
    for at in range(claims):
        if at != first and not is_owed:
            others_ms = min(others_ms, world.claims[at].latest_ms)
    dropped, limit = 0, max(one.limit, 1)
    if not world.taken[model]:
        dropped = given_up(world, slot, partition, limit, one.following)
    end_ms = min(queues.deadline_ms(world, model, dropped), others_ms)
    rows = min(limit, queues.count(world, model) - dropped)
    decide(world, partition, slot, rows_in_time(world, slot, rows, end_ms - now_ms), dropped)


@compiled
def choose(world: World, claims: int) -> int:
    """The first, or long work that must begin before the first could end."""
    now_ms, first = world.state[0].now_ms, world.claims[0]
    elsewhere = hosts(world, world.slots[first.slot].model)
    for at in range(1, claims):
        other = world.claims[at]
        must_begin = now_ms <= other.latest_ms and other.latest_ms < now_ms + first.run_ms
        if must_begin and elsewhere > hosts(world, world.slots[other.slot].model):
            return at
    return 0
