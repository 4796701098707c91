"""What one request holds until its end: slots of the arena, and bytes of a budget."""

from __future__ import annotations

from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.shm.arena import Arena


class Held:
    """Slots and bytes of one request, given back at once by ``drop``."""

    __slots__ = ("_arena", "_reserved", "_slots")

    def __init__(self, arena: Arena, budget: HeapBudget) -> None:
        self._arena = arena
        self._reserved = HeapReservation(budget)
        self._slots: tuple[int, ...] = ()

    def own(self, slot: int) -> None:
        """Hold a slot; one that is held already is held once."""
        if slot not in self._slots:
            self._slots = (*self._slots, slot)

    def disown(self, slot: int) -> None:
        """Free a slot before the others."""
        self._slots = tuple(each for each in self._slots if each != slot)
        self._arena.free(slot)

    def count(self, nbytes: int) -> None:
        """Count that many bytes, instead of those counted so far.

        Raises:
            ServeError: OVERLOADED; none are counted then.
        """
        self._reserved.resize(nbytes)

    def drop(self) -> None:
        """Give everything back; twice is once."""
        slots, self._slots = self._slots, ()
        for slot in slots:
            self._arena.free(slot)
        self._reserved.release()
