"""Inputs copied to the GPU when they arrive, beside what runs there (E2bird section 5.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.driver.kernels import Kernels
from interlace.device.cuda.engine.transfer import Gather, Publish
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.memory.ring import Field, Ring
from interlace.device.cuda.partitions.lanes import Lane


class Copies(Protocol):
    """How bytes come to a slot."""

    def copy(
        self, stream: int, ring: Ring, place: int, slot: int, source: int, nbytes: int
    ) -> None:
        """Start the copy of an input to a slot and those after it, in stream order."""
        ...


class KernelCopies:
    """SMs read the arena in place: small copies never wait behind a model's load."""

    def __init__(self, driver: Driver, kernels: Kernels) -> None:
        self._gather = Gather(driver, kernels)

    def copy(
        self, stream: int, ring: Ring, place: int, slot: int, source: int, nbytes: int
    ) -> None:
        word = ring.source_word(place, slot, source)
        self._gather.fetch(stream, word, ring.one_word, ring.address(place, slot), nbytes)


class EngineCopies:
    """The copy engine: no SM is used, but it serves in order and knows no priority."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def copy(
        self, stream: int, ring: Ring, place: int, slot: int, source: int, nbytes: int
    ) -> None:
        self._driver.copy(ring.address(place, slot), source, nbytes, stream)


class _OnItsWay(NamedTuple):
    sequence: int
    ring: Ring
    slot: int
    rows: int


class InputRings:
    """The rings of all models of a process, filled on one lane in the order asked for.

    ``flag`` is the lane's flag as the GPU sees it: every copy ends by writing its sequence number
    there, and whoever reads it calls ``ended``.
    """

    def __init__(
        self,
        driver: Driver,
        kernels: Kernels,
        memory: MappedMemory,
        arenas: RegisteredArenas,
        lane: Lane,
        flag: int,
        copies: Copies | None = None,
    ) -> None:
        self._driver = driver
        self._memory = memory
        self._arenas = arenas
        self._lane = lane
        self._flag = flag
        self._publish = Publish(driver, kernels)
        self._copies: Copies = copies or KernelCopies(driver, kernels)
        self._rings: dict[str, Ring] = {}
        self._on_their_way: deque[_OnItsWay] = deque()
        self._sequence = 0

    def stage(
        self, model: str, slot: int, slots: int, rows: int, inputs: Sequence[tuple[str, Span]]
    ) -> int:
        """Start copying a request's ``inputs`` to ``slot`` and those after it.

        Returns the sequence number that the flag has when they are there; numbers grow by one.

        Raises:
            ValueError: the inputs are no whole rows, the slots do not exist or are in use, or an
                arena is gone.
            CudaError: no memory is left for a ring, or the driver refused.
        """
        sources = [self._arenas.address(span) for _, span in inputs]
        ring = self._ring(model, _fields(inputs, rows), slots)
        ring.begin_copy(slot, rows)
        sequence = self._sequence + 1
        with ExitStack() as undo:
            undo.callback(ring.end_copy, slot, rows)
            stream = self._lane.stream
            for place, (source, (_, span)) in enumerate(zip(sources, inputs, strict=True)):
                if span.nbytes:
                    self._copies.copy(stream, ring, place, slot, source, span.nbytes)
            self._publish.signal(stream, self._flag, ring.sequence_word(slot, sequence))
            undo.pop_all()
        self._sequence = sequence
        self._on_their_way.append(_OnItsWay(sequence, ring, slot, rows))
        return sequence

    def ended(self, sequence: int) -> None:
        """The flag has this number: that copy and all before it are done."""
        waiting = self._on_their_way
        while waiting and waiting[0].sequence <= sequence:
            done = waiting.popleft()
            done.ring.end_copy(done.slot, done.rows)

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
            CudaError: the driver refused.
        """
        ring = self._rings.get(model)
        if ring is None:
            return
        if not ring.idle:
            raise ValueError(f"the inputs of model {model} are in use")
        del self._rings[model]
        ring.close()

    def close(self) -> None:
        """Give all rings back; nothing is on its way or runs any more.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        rings, self._rings = self._rings, {}
        self._on_their_way.clear()
        with ExitStack() as steps:
            for ring in rings.values():
                steps.callback(ring.close)

    def _ring(self, model: str, fields: tuple[Field, ...], slots: int) -> Ring:
        """The model's ring; a new one if rows are different now, which an idle ring's may be."""
        ring = self._rings.get(model)
        if ring is None or (ring.fields, ring.slots) != (fields, slots):
            self.forget(model)
            ring = self._rings[model] = Ring(self._driver, self._memory, fields, slots)
        return ring


def _fields(inputs: Sequence[tuple[str, Span]], rows: int) -> tuple[Field, ...]:
    fields = []
    for name, span in inputs:
        if rows <= 0 or span.nbytes % rows:
            raise ValueError(f"input '{name}': {span.nbytes} bytes in {rows} rows")
        fields.append(Field(name, span.nbytes // rows))
    return tuple(fields)
