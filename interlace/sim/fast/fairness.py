"""Who contends and who is owed a batch: ``engine.fairness``, ``engine.ledger``, compiled."""

from __future__ import annotations

from typing import Final

from interlace.engine.contention import LOSING_MS
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import World

_LOSING_MS: Final = LOSING_MS


@compiled
def lost(world: World, model: int) -> None:
    """A request of the model was refused, dropped or late."""
    world.models[model].lost_ms = world.state[0].lost_ms = world.state[0].now_ms


@compiled
def contend(world: World, gpu: int) -> None:
    """Before a decision: find who contends in each idle partition of an accelerator."""
    state, one = world.state[0], world.gpus[gpu]
    calm = state.now_ms - state.lost_ms > _LOSING_MS
    for at in range(one.part_from, one.part_to):
        part = world.partitions[world.gpu_partitions[at]]
        if part.slot_to - part.slot_from == 1 or part.model >= 0 or (calm and not part.contending):
            continue
        part.contending = 0
        for slot in range(part.slot_from, part.slot_to):
            turn = world.slots[slot]
            model = world.models[turn.model]
            loses = state.now_ms - model.lost_ms <= _LOSING_MS
            contends = loses and model.last - model.first >= turn.batch
            if contends and not turn.contends:
                turn.counter_ms = max(turn.counter_ms, part.begun_ms)
            turn.contends = contends
            part.contending += contends


@compiled
def began(world: World, partition: int, slot: int, rows: int) -> None:
    """A batch began."""
    part, turn = world.partitions[partition], world.slots[slot]
    if turn.contends:
        part.begun_ms = max(part.begun_ms, turn.counter_ms)
        turn.counter_ms = turn.counter_ms + rows / turn.planned_rps * 1000.0


@compiled
def owed(world: World, chosen: int, claims: int) -> int:
    """The claim that is owed a batch before the chosen and is furthest behind it, or -1."""
    first = world.slots[world.claims[chosen].slot]
    if not first.contends:
        return -1
    found, most_ms = -1, 0.0
    for at in range(claims):
        turn = world.slots[world.claims[at].slot]
        behind_ms = first.counter_ms - turn.counter_ms
        if turn.contends and behind_ms >= turn.owed_ms and behind_ms > most_ms:
            found, most_ms = at, behind_ms
    return found
