"""From decisions to batches that run, and from their ends to answers: ``engine.serving``."""

from __future__ import annotations

from math import inf
from typing import Final

from interlace.engine import timeouts
from interlace.sim.fast import queues
from interlace.sim.fast.beliefs import judge, latency_ms, learn
from interlace.sim.fast.calls import call_at, wake_at
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.fairness import began
from interlace.sim.fast.layout import World

_MARGIN_MS: Final = timeouts._MARGIN_MS


@compiled
def forget_taken(world: World, gpu: int) -> None:
    """A new decision: nothing is taken yet."""
    one = world.gpus[gpu]
    for at in range(one.model_from, one.model_to):
        world.taken[world.gpu_models[at]] = 0


@compiled
def decide(world: World, partition: int, slot: int, rows: int, dropped: int) -> None:
    """Enter a launch into the decision."""
    state = world.state[0]
    launch = world.launches[state.launches]
    state.launches += 1
    launch.partition, launch.slot, launch.rows, launch.dropped = partition, slot, rows, dropped
    world.taken[world.slots[slot].model] += rows + dropped


@compiled
def drop_hopeless(world: World, gpu: int) -> None:
    """Before a decision: answer what could not end in time even alone and at once."""
    one = world.gpus[gpu]
    for at in range(one.model_from, one.model_to):
        index = world.gpu_models[at]
        model = world.models[index]
        if model.first == model.last:
            continue
        fastest_ms = inf
        for host in range(model.host_from, model.host_to):
            fastest_ms = min(fastest_ms, latency_ms(world, world.hosts[host].slot, 1))
        queues.expire(world, index, world.state[0].now_ms + fastest_ms)


@compiled
def carry_out(world: World) -> None:
    """Give up what was decided to be, start the batches, keep the wish to be woken."""
    state = world.state[0]
    for at in range(state.launches):
        launch = world.launches[at]
        if launch.dropped:
            queues.give_up(world, world.slots[launch.slot].model, launch.dropped)
    for at in range(state.launches):
        launch = world.launches[at]
        start(world, launch.partition, launch.slot, launch.rows)
    if state.wish_ms < inf:
        wake_at(world, state.wish_ms)


@compiled
def start(world: World, partition: int, slot: int, limit: int) -> None:
    """Run up to ``limit`` requests; nothing if an earlier launch took the last."""
    one, turn = world.partitions[partition], world.slots[slot]
    model, now_ms = world.models[turn.model], world.state[0].now_ms
    rows = min(limit, model.last - model.first)
    if rows <= 0:
        return
    one.model, one.slot, one.batch, one.rows = turn.model, slot, model.first, rows
    model.first += rows
    one.started_ms = now_ms
    one.free_at_ms = now_ms + latency_ms(world, slot, rows)
    turn.last_start_ms = now_ms
    began(world, partition, slot, rows)
    work_ms = world.true_ms[turn.table + rows] + turn.hand_over_ms
    turn.hand_over_ms = 0.0
    call_at(world, now_ms + work_ms, partition)


@compiled
def given_up_ms(started_ms: float, expected_ms: float, deadline_ms: float) -> float:
    """When a request that runs is given up: ``engine.timeouts``."""
    return max(deadline_ms, expected_ms) + max(_MARGIN_MS, expected_ms - started_ms)


@compiled
def finish(world: World, partition: int) -> None:
    """A batch ended: learn from it, answer its requests."""
    state, one = world.state[0], world.partitions[partition]
    model, slot, rows, now_ms = one.model, one.slot, one.rows, state.now_ms
    expected_ms = one.free_at_ms
    one.model, one.free_at_ms = -1, -inf
    learn(world, slot, rows, now_ms - one.started_ms)
    done = world.executions[state.executions]
    state.executions += 1
    done.started_ms, done.ended_ms, done.partition = one.started_ms, now_ms, partition
    done.rows, done.model, done.slot = rows, model, slot
    for at in range(one.batch, one.batch + rows):
        request = world.queued[at]
        asked = world.requests[request]
        in_time = now_ms <= asked.deadline_ms
        judge(world, model, asked.arrived_ms, in_time)
        if now_ms > given_up_ms(one.started_ms, expected_ms, asked.deadline_ms):
            queues.answer(world, request, queues.EXPIRED)
            continue
        asked.started_ms, asked.batch_rows, asked.partition = one.started_ms, rows, partition
        queues.answer(world, request, queues.OK if in_time else queues.LATE)
