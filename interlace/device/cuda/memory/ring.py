"""A model's inputs on the GPU: a ring of slots, so that a batch is a window of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords
from interlace.device.cuda.memory.parameters import row_addresses

_ALIGN: Final = 256


class RingInput(NamedTuple):
    """One input of every row of a ring."""

    name: str
    row_bytes: int


class DeviceRing:
    """``slots`` rows of every input in device memory (GPU resident memory pool, E2bird 5.1).

    The engine decides which request lies where. The ring holds it to one rule: a slot is not
    written while another copy to it is on its way or a batch reads it. Each slot has words in
    mapped memory for the copy to it: where its row of each input comes from, and a sequence number.
    """

    def __init__(
        self, driver: Driver, memory: MappedMemory, fields: tuple[RingInput, ...], slots: int
    ) -> None:
        self.fields = fields
        self.slots = slots
        self._driver = driver
        self._copying = [False] * slots
        self._readers = [0] * slots
        bases, nbytes = _laid_out(fields, slots)
        with ExitStack() as undo:
            self._words = MappedWords(memory, slots * (len(fields) + 1) + 1)
            undo.callback(self._words.close)
            self._memory = driver.allocate(nbytes)
            undo.pop_all()
        self._bases = [self._memory + base for base in bases]
        self._words.put(slots * (len(fields) + 1), slots)

    @property
    def idle(self) -> bool:
        """No slot is being copied to or read."""
        return not any(self._copying) and not any(self._readers)

    @property
    def slots_word(self) -> int:
        """Address of a word that says how many slots there are."""
        return self._words.address(self.slots * (len(self.fields) + 1))

    def sequence_word(self, slot: int, sequence: int) -> int:
        """Address of the slot's word for the number of the copy to it, written."""
        at = self.slots * len(self.fields) + slot
        self._words.put(at, sequence)
        return self._words.address(at)

    def source_words(self, place: int, slot: int, sources: Sequence[int]) -> int:
        """Address of the words for where an input's rows come from, of a slot and those after."""
        at = self.slots * place + slot
        self._words.put_all(at, sources)
        return self._words.address(at)

    def address(self, place: int, slot: int) -> int:
        """Where the row of an input lies."""
        return self._bases[place] + slot * self.fields[place].row_bytes

    def window(self, slot: int, rows: int) -> tuple[Sequence[int], ...]:
        """Per input the addresses of rows that follow each other."""
        return tuple(
            row_addresses(self.address(place, slot), rows, field.row_bytes)
            for place, field in enumerate(self.fields)
        )

    def begin_copy(self, slot: int, rows: int) -> None:
        """Raises ValueError if these slots do not exist or are in use; nothing changes then."""
        for one in self._window(slot, rows):
            if self._copying[one] or self._readers[one]:
                busy = "copied to" if self._copying[one] else "read by a batch"
                raise ValueError(f"slot {one} of {self.slots} is being {busy}")
        self._copying[slot : slot + rows] = [True] * rows

    def end_copy(self, slot: int, rows: int) -> None:
        self._copying[slot : slot + rows] = [False] * rows

    def begin_batch(self, slot: int, rows: int) -> None:
        """Raises ValueError if these slots do not exist or are still being copied to."""
        for one in self._window(slot, rows):
            if self._copying[one]:
                raise ValueError(f"slot {one} of {self.slots} is being copied to")
        for one in range(slot, slot + rows):
            self._readers[one] += 1

    def end_batch(self, slot: int, rows: int) -> None:
        for one in range(slot, slot + rows):
            self._readers[one] -= 1

    def close(self) -> None:
        """Give the memory back; the ring is idle.

        Raises:
            CudaError: the driver refused.
        """
        with ExitStack() as steps:  # every step is tried
            steps.callback(self._driver.free, self._memory)
            steps.callback(self._words.close)

    def _window(self, slot: int, rows: int) -> range:
        if slot < 0 or rows <= 0 or slot + rows > self.slots:
            raise ValueError(f"slot {slot} for {rows} rows in {self.slots} slots")
        return range(slot, slot + rows)


def _laid_out(fields: tuple[RingInput, ...], slots: int) -> tuple[list[int], int]:
    """Where each input begins, and bytes in all."""
    bases, nbytes = [], 0
    for field in fields:
        bases.append(nbytes)
        nbytes += -(-field.row_bytes * slots // _ALIGN) * _ALIGN
    return bases, max(1, nbytes)
