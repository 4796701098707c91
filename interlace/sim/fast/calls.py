"""What happens next: a heap of calls by time, then by the order in which they were asked for."""

from __future__ import annotations

from interlace.sim.fast.compiled import compiled
from interlace.sim.fast.layout import Table, World


@compiled
def before(calls: Table, one: int, other: int) -> bool:
    """True if call ``one`` comes first."""
    if calls[one].at_ms != calls[other].at_ms:
        return bool(calls[one].at_ms < calls[other].at_ms)
    return bool(calls[one].turn < calls[other].turn)


@compiled
def swap(calls: Table, one: int, other: int) -> None:
    at_ms, turn, partition = calls[one].at_ms, calls[one].turn, calls[one].partition
    calls[one].at_ms = calls[other].at_ms
    calls[one].turn = calls[other].turn
    calls[one].partition = calls[other].partition
    calls[other].at_ms, calls[other].turn, calls[other].partition = at_ms, turn, partition


@compiled
def turn(world: World) -> int:
    """The next place among calls of equal time."""
    state = world.state[0]
    state.next_turn += 1
    return int(state.next_turn)


@compiled
def call_at(world: World, at_ms: float, partition: int) -> None:
    """Ask for a call; a past time is now."""
    state, calls = world.state[0], world.calls
    place = state.calls
    state.calls += 1
    calls[place].at_ms = max(at_ms, state.now_ms)
    calls[place].turn = turn(world)
    calls[place].partition = partition
    while place > 0:
        above = (place - 1) // 2
        if not before(calls, place, above):
            return
        swap(calls, place, above)
        place = above


@compiled
def take(world: World) -> int:
    """Remove the first call and move the clock there; whose batch ends, or -1 for a wake."""
    state, calls = world.state[0], world.calls
    state.now_ms = calls[0].at_ms
    partition = calls[0].partition
    state.calls -= 1
    count = state.calls
    swap(calls, 0, count)
    place = 0
    while True:
        least = 2 * place + 1
        if least >= count:
            break
        if least + 1 < count and before(calls, least + 1, least):
            least += 1
        if not before(calls, least, place):
            break
        swap(calls, place, least)
        place = least
    return int(partition)


@compiled
def wake_at(world: World, at_ms: float) -> None:
    """Ask to be woken, unless an earlier wake is asked for already."""
    state = world.state[0]
    if state.wake_at_ms <= at_ms:
        return
    state.wake_at_ms = at_ms
    call_at(world, at_ms, -1)
