"""The loop, once for every pair of rules: which pair is chosen outside of it."""

from __future__ import annotations

from math import inf

from interlace.engine.retries import AFTER_MS
from interlace.sim.fast import queues
from interlace.sim.fast.admission import everyone, in_time
from interlace.sim.fast.calls import take, turn, wake_at
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.deadline import deadline
from interlace.sim.fast.duty import duty
from interlace.sim.fast.launching import carry_out, drop_hopeless, finish
from interlace.sim.fast.layout import World

#: Room for calls that one event may ask for, beside one for every partition.
SPARE = 8


@compiled
def advance(world: World) -> bool:
    """Take in the next event; false when all is answered, or when ``calls`` must grow first."""
    state = world.state[0]
    room = len(world.calls) - state.calls > len(world.gpus) + len(world.partitions) + SPARE
    if not state.open or not room:
        return False
    state.event, state.asked = -1, 0
    if arrival_is_next(world):
        arrive(world)
        return True
    partition = take(world)
    if partition >= 0:
        finish(world, partition)
        ask(world, world.partitions[partition].gpu)
    else:
        wake(world)
    return True


@compiled
def arrival_is_next(world: World) -> bool:
    state = world.state[0]
    if state.next_request == len(world.requests):
        return False
    if not state.calls:
        return True
    call, at_ms = world.calls[0], world.requests[state.next_request].arrived_ms
    if at_ms != call.at_ms:
        return bool(at_ms < call.at_ms)
    return bool(state.source_turn < call.turn)


@compiled
def arrive(world: World) -> None:
    """The next request is there; the one after it is asked for first, as the source does."""
    state = world.state[0]
    state.event = state.next_request
    state.now_ms = world.requests[state.event].arrived_ms
    state.next_request += 1
    state.source_turn = turn(world)


@compiled
def enter(world: World, admitted: bool) -> None:
    """Queue the request and ask the accelerators with an idle host, or refuse it."""
    state = world.state[0]
    if not admitted:
        queues.answer(world, state.event, queues.REFUSED)
        state.event = -1
        return
    queues.push(world, state.event)
    model = world.models[world.requests[state.event].model]
    for at in range(model.host_from, model.host_to):
        partition = world.partitions[world.hosts[at].partition]
        if partition.model < 0:
            ask(world, partition.gpu)


@compiled
def ask(world: World, gpu: int) -> None:
    """Dispatch on an accelerator once."""
    state = world.state[0]
    for at in range(state.asked):
        if world.asked[at] == gpu:
            return
    world.asked[state.asked] = gpu
    state.asked += 1


@compiled
def wake(world: World) -> None:
    """Answer what is late, ask for the next wake, and every accelerator for its decision."""
    state = world.state[0]
    if state.wake_at_ms == state.now_ms:
        state.wake_at_ms = inf
    next_ms = inf
    for index in range(len(world.models)):
        queues.expire(world, index, state.now_ms)
        next_ms = min(next_ms, queues.deadline_ms(world, index, 0))
    if next_ms < inf:
        wake_at(world, next_ms + AFTER_MS)
    for gpu in range(len(world.gpus)):
        world.asked[gpu] = gpu
    state.asked = len(world.gpus)


@compiled
def settle(world: World) -> None:
    """After an arrival: if it waits at the head of its queue, its deadline is looked at."""
    event = world.state[0].event
    if event < 0:
        return
    model = world.models[world.requests[event].model]
    if model.first < model.last and world.queued[model.first] == event:
        wake_at(world, world.requests[event].deadline_ms + AFTER_MS)


@compiled
def play_duty(world: World) -> None:
    while advance(world):
        if world.state[0].event >= 0:
            enter(world, everyone(world, world.state[0].event))
        for at in range(world.state[0].asked):
            drop_hopeless(world, world.asked[at])
            duty(world, world.asked[at])
            carry_out(world)
        settle(world)


@compiled
def play_duty_in_time(world: World) -> None:
    while advance(world):
        if world.state[0].event >= 0:
            enter(world, in_time(world, world.state[0].event))
        for at in range(world.state[0].asked):
            drop_hopeless(world, world.asked[at])
            duty(world, world.asked[at])
            carry_out(world)
        settle(world)


@compiled
def play_deadline(world: World) -> None:
    while advance(world):
        if world.state[0].event >= 0:
            enter(world, everyone(world, world.state[0].event))
        for at in range(world.state[0].asked):
            drop_hopeless(world, world.asked[at])
            deadline(world, world.asked[at])
            carry_out(world)
        settle(world)


@compiled
def play_deadline_in_time(world: World) -> None:
    while advance(world):
        if world.state[0].event >= 0:
            enter(world, in_time(world, world.state[0].event))
        for at in range(world.state[0].asked):
            drop_hopeless(world, world.asked[at])
            deadline(world, world.asked[at])
            carry_out(world)
        settle(world)
