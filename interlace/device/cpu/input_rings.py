"""Rings of inputs in shared memory: what a GPU resident memory pool is on a processor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from interlace.core.messages import CopyInputs, Failure, WorkFinished
from interlace.core.request import Batch, Request
from interlace.device.base import Done
from interlace.device.process.wire import Column
from interlace.shm.arena import Arena, ArenaMap

_ALIGN: Final = 64
#: Copied at once if nothing is on its way: handing over to the thread costs more than that.
_SMALL_BYTES: Final = 1 << 16


class HostRingInput(NamedTuple):
    """One input of every row of a ring."""

    name: str
    datatype: str
    row_bytes: int
    base: int


class HostRing:
    """A model's slots: per input one array of ``slots`` rows, all in one arena of its own.

    Rows that follow each other are one piece of memory, so a batch of them is an array where it
    lies: workers map the arena and read it.
    """

    def __init__(self, fields: tuple[HostRingInput, ...], slots: int) -> None:
        self.fields = fields
        self.slots = slots
        last = fields[-1] if fields else HostRingInput("", "", 1, 0)
        self.arena = Arena.create(max(1, last.base + last.row_bytes * slots))

    def columns(self, batch: Batch, slot: int) -> tuple[Column, ...]:
        """The window of a batch, as the columns of its frame."""
        shapes = {tensor.name: tensor.shape for tensor in batch.requests[0].inputs}
        return tuple(
            Column(
                field.name,
                field.datatype,
                shapes[field.name],
                (self.arena.number,),
                (field.base + slot * field.row_bytes,),
                (batch.rows * field.row_bytes,),
            )
            for field in self.fields
        )


class HostRings:
    """The rings of all models of a device, and the one thread that copies into them.

    Copies are made one at a time, in the order asked for (InMutex of E2bird section 5.1), beside
    the workers' computing and the event loop: numpy copies without the interpreter's lock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, arenas: ArenaMap) -> None:
        self._loop = loop
        self._arenas = arenas
        self._rings: dict[str, HostRing] = {}
        self._open: dict[int, tuple[CopyInputs, Done]] = {}
        self._serial = 0
        self._thread: ThreadPoolExecutor | None = None

    def stage(self, stage: CopyInputs, done: Done) -> None:
        """Copy a request's inputs to their slots; ``done`` hears of it later.

        Raises:
            ValueError: the inputs are no whole rows, or the slots reach out of the ring.
            OSError: no memory is left for a ring.
        """
        pairs = self._pairs(stage)
        self._serial += 1
        serial = self._serial
        small = not self._open and sum(len(source) for _, source in pairs) <= _SMALL_BYTES
        self._open[serial] = (stage, done)
        if small:
            _copy(pairs)
            self._loop.call_soon(self._copied, serial, None)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "staging")
        self._thread.submit(self._copy_aside, pairs, serial)

    def window(self, batch: Batch) -> tuple[Column, ...] | None:
        """Where a batch's rows lie in a row; ``None`` if they are not staged here."""
        ring = self._rings.get(batch.model)
        return None if ring is None or batch.slot is None else ring.columns(batch, batch.slot)

    def forget(self, model: str) -> None:
        """Give a model's ring back; nothing of it runs."""
        ring = self._rings.pop(model, None)
        if ring is not None:
            self._arenas.forget(ring.arena.number)
            ring.arena.wipe()
            ring.arena.close()

    def close(self) -> None:
        """Fail what is unfinished."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        unfinished, self._open = self._open, {}
        for stage, done in unfinished.values():
            done(WorkFinished(stage, failure=Failure("the device is closed")))
        for model in list(self._rings):
            self.forget(model)

    def _pairs(self, stage: CopyInputs) -> list[tuple[memoryview, memoryview]]:
        """What is copied, as (target, source)."""
        request = stage.request
        ring = self._ring(stage)
        if stage.slot < 0 or stage.slot + request.rows > ring.slots:
            raise ValueError(f"slot {stage.slot} for {request.rows} rows in {ring.slots} slots")
        pairs: list[tuple[memoryview, memoryview]] = []
        for field, tensor in zip(ring.fields, request.inputs, strict=True):
            at = field.base + stage.slot * field.row_bytes
            source = self._arenas.view(tensor.span)
            pairs.append((ring.arena.view(at, len(source)), source))
        return pairs

    def _ring(self, stage: CopyInputs) -> HostRing:
        """The model's ring; a new one if rows are different now, which an empty ring's may be."""
        fields = _fields(stage.request, stage.slots)
        ring = self._rings.get(stage.request.model)
        if ring is None or (ring.fields, ring.slots) != (fields, stage.slots):
            self.forget(stage.request.model)
            ring = self._rings[stage.request.model] = HostRing(fields, stage.slots)
            self._arenas.add(ring.arena)
        return ring

    def _copy_aside(self, pairs: Sequence[tuple[memoryview, memoryview]], serial: int) -> None:
        failure: Failure | None = None
        try:
            _copy(pairs)
        except Exception as error:
            failure = Failure(f"inputs could not be staged: {error}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._copied, serial, failure)

    def _copied(self, serial: int, failure: Failure | None) -> None:
        entry = self._open.pop(serial, None)
        if entry is not None:
            entry[1](WorkFinished(entry[0], failure=failure))


def _fields(request: Request, slots: int) -> tuple[HostRingInput, ...]:
    fields: list[HostRingInput] = []
    base = 0
    for name, datatype, _, span in request.inputs:
        row_bytes, rest = divmod(span.nbytes, request.rows)
        if rest:
            raise ValueError(f"input '{name}': {span.nbytes} bytes in {request.rows} rows")
        fields.append(HostRingInput(name, datatype, row_bytes, base))
        base += -(-row_bytes * slots // _ALIGN) * _ALIGN
    return tuple(fields)


def _copy(pairs: Sequence[tuple[memoryview, memoryview]]) -> None:
    for target, source in pairs:
        if not len(source):
            continue
        into: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(target, np.uint8)
        np.copyto(into, np.frombuffer(source, np.uint8))
