"""Models take turns inside each partition: ``policy.dispatchers.duty``, compiled."""

from __future__ import annotations

from math import inf

from interlace.sim.fast import queues
from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.launching import decide, forget_taken
from interlace.sim.fast.layout import World


@compiled
def duty(world: World, gpu: int) -> None:
    """Decide what starts on one accelerator."""
    state, one = world.state[0], world.gpus[gpu]
    state.launches, state.wish_ms = 0, inf
    forget_taken(world, gpu)
    for at in range(one.part_from, one.part_to):
        partition = world.gpu_partitions[at]
        if world.partitions[partition].model >= 0:
            continue
        slot = longest_waiting(world, partition)
        if slot >= 0:
            rows = min(world.slots[slot].batch, queues.count(world, world.slots[slot].model))
            decide(world, partition, slot, rows, 0)


@compiled
def longest_waiting(world: World, partition: int) -> int:
    """The slot whose turn it is, among those with requests; -1 if none has any."""
    best = -1
    for slot in range(world.partitions[partition].slot_from, world.partitions[partition].slot_to):
        model = world.slots[slot].model
        if queues.count(world, model) <= world.taken[model]:
            continue
        if best < 0 or world.slots[slot].last_start_ms < world.slots[best].last_start_ms:
            best = slot
    return best
