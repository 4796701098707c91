"""Inputs copied to the GPU when they arrive, beside what runs there (E2bird section 5.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError, Driver
from interlace.device.cuda.driver.kernels import Kernels
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.mapped import MappedMemory, MappedWords
from interlace.device.cuda.memory.parameters import TransferKernels, row_addresses
from interlace.device.cuda.memory.registered import RegisteredArenas

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
        """Give the memory back; the ring is idle."""
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


class StagedPart(NamedTuple):
    """One request's rows and inputs."""

    rows: int
    inputs: Sequence[tuple[str, Span]]


class _StagedRows(NamedTuple):
    ring: DeviceRing
    slot: int
    rows: int


class DeviceRings:
    """The rings of all models of a process, filled on one lane in the order asked for.

    ``flag`` is the lane's flag as the GPU sees it: ``tell`` has a number written there when all
    copies before it are done; its reader calls ``ended``.
    """

    def __init__(
        self,
        driver: Driver,
        kernels: Kernels,
        memory: MappedMemory,
        arenas: RegisteredArenas,
        lane: Lane,
        flag: int,
    ) -> None:
        self._driver = driver
        self._memory = memory
        self._arenas = arenas
        self._lane = lane
        self._flag = flag
        self._transfer = TransferKernels(driver, kernels)
        self._rings: dict[str, DeviceRing] = {}
        self._copied: list[_StagedRows] = []  #: and not told of
        self._on_their_way: deque[tuple[int, list[_StagedRows]]] = deque()
        self._sequence = 0

    def copy(self, model: str, slot: int, slots: int, parts: Sequence[StagedPart]) -> None:
        """Start copying requests' inputs to ``slot`` and those after it, as one; then ``tell``.

        Raises:
            ValueError: the inputs are no whole rows or are of several sizes, the slots do not exist
                or are in use, or an arena is gone.
            CudaError: no memory is left for a ring, or the driver refused.
        """
        fields = _fields(parts[0])
        if any(_fields(part) != fields for part in parts):
            raise ValueError("requests with inputs of several sizes")
        sources = [self._sources(parts, place, field) for place, field in enumerate(fields)]
        rows = sum(part.rows for part in parts)
        ring = self._ring(model, fields, slots)
        ring.begin_copy(slot, rows)
        with ExitStack() as undo:
            undo.callback(ring.end_copy, slot, rows)
            for place, (field, addresses) in enumerate(zip(fields, sources, strict=True)):
                if field.row_bytes:
                    self._fetch(ring, place, slot, addresses)
            undo.pop_all()
        self._copied.append(_StagedRows(ring, slot, rows))

    def tell(self) -> int:
        """Have the flag written when what was copied since the last time is there.

        Returns the sequence number that it has then; numbers grow by one.

        Raises:
            CudaError: the driver refused; the copies count for nothing.
        """
        copied, self._copied = self._copied, []
        ring, slot, _ = copied[-1]
        sequence = self._sequence + 1
        try:
            word = ring.sequence_word(slot, sequence)
            self._transfer.signal(self._lane.stream, self._flag, word)
        except CudaError:
            _end(copied)
            raise
        self._sequence = sequence
        self._on_their_way.append((sequence, copied))
        return sequence

    def ended(self, sequence: int) -> None:
        """The flag has this number: those copies and all before them are done."""
        waiting = self._on_their_way
        while waiting and waiting[0][0] <= sequence:
            _end(waiting.popleft()[1])

    def begin_batch(self, model: str, slot: int, rows: int) -> tuple[Sequence[int], ...]:
        """Per input the addresses of a batch's rows, which nothing overwrites until its end.

        Raises:
            ValueError: they are not staged here, or not yet.
        """
        ring = self._rings.get(model)
        if ring is None:
            raise ValueError(f"nothing of model {model} is staged here")
        ring.begin_batch(slot, rows)
        return ring.window(slot, rows)

    def end_batch(self, model: str, slot: int, rows: int) -> None:
        """The batch has ended: its slots may be used again."""
        ring = self._rings.get(model)
        if ring is not None:
            ring.end_batch(slot, rows)

    def forget(self, model: str) -> None:
        """Give a model's ring back; unknown models pass.

        Raises:
            ValueError: something of it is on its way or runs.
        """
        ring = self._rings.get(model)
        if ring is None:
            return
        if not ring.idle:
            raise ValueError(f"the inputs of model {model} are in use")
        del self._rings[model]
        ring.close()

    def close(self) -> None:
        """Give all rings back; nothing is on its way or runs any more. Every step is tried."""
        rings, self._rings = self._rings, {}
        self._on_their_way.clear()
        self._copied.clear()
        with ExitStack() as steps:
            for ring in rings.values():
                steps.callback(ring.close)

    def _fetch(self, ring: DeviceRing, place: int, slot: int, sources: Sequence[int]) -> None:
        """Start the copy of an input's rows to a slot and those after it, in stream order.

        SMs read the arena in place: a small copy never waits behind a model's load, as it would on
        a copy engine.
        """
        table, row_bytes = ring.source_words(place, slot, sources), ring.fields[place].row_bytes
        target, rows = ring.address(place, slot), len(sources)
        stream = self._lane.stream
        self._transfer.fetch(stream, table, ring.slots_word, target, row_bytes, rows)

    def _sources(self, parts: Sequence[StagedPart], place: int, field: RingInput) -> list[int]:
        """Where each row of an input lies."""
        found: list[int] = []
        for part in parts:
            first = self._arenas.address(part.inputs[place][1])
            found += row_addresses(first, part.rows, field.row_bytes)
        return found

    def _ring(self, model: str, fields: tuple[RingInput, ...], slots: int) -> DeviceRing:
        """The model's ring; a new one if rows are different now, which an idle ring's may be."""
        ring = self._rings.get(model)
        if ring is None or (ring.fields, ring.slots) != (fields, slots):
            self.forget(model)
            ring = self._rings[model] = DeviceRing(self._driver, self._memory, fields, slots)
        return ring


def _end(copied: Sequence[_StagedRows]) -> None:
    for one in copied:
        one.ring.end_copy(one.slot, one.rows)


def _fields(part: StagedPart) -> tuple[RingInput, ...]:
    fields = []
    for name, span in part.inputs:
        if part.rows <= 0 or span.nbytes % part.rows:
            raise ValueError(f"input '{name}': {span.nbytes} bytes in {part.rows} rows")
        fields.append(RingInput(name, span.nbytes // part.rows))
    return tuple(fields)
