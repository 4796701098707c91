"""Answers of simulated models: right in shape and type, and different for each request.

Nothing is computed. Every output holds the bytes of a digest of its request, one after the other,
as numbers of the output's datatype. So a client can compute the answer to its request, and find
mixed-up answers.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import count
from typing import Final

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.messages import CancelRun, Failure, PartitionLost, Run, Work, WorkFinished
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.request import Request
from interlace.core.tensor import (
    BYTES,
    ITEM_BYTES,
    Signature,
    Span,
    Tensor,
    TensorSpec,
    element_count,
    frame,
)
from interlace.device.base import Done
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import Physics
from interlace.device.simulated.running_batches import Timer
from interlace.formats.arrays import NUMPY_TYPES
from interlace.shm.arena import Arena, ArenaMap

#: Of each input so many bytes count, so that a large one costs no more than a small one.
READ_BYTES: Final = 4096
_DIGEST_BYTES: Final = 32


def request_digest(model: str, inputs: Iterable[tuple[str, bytes | memoryview]]) -> bytes:
    """32 bytes of BLAKE2b over a model's public name and its inputs, by name and first bytes."""
    hashed = blake2b(model.encode(), digest_size=_DIGEST_BYTES)
    for name, content in sorted(inputs, key=lambda one: one[0]):
        hashed.update(b"\0%s\0%d\0" % (name.encode(), len(content)))
        hashed.update(content[:READ_BYTES])
    return hashed.digest()


def filled(digest: bytes, datatype: str, count: int) -> bytes:
    """``count`` elements of a datatype in the v2 binary form: element i is byte i mod 32.

    INT8 has half of each byte, BOOL its last bit; a ``BYTES`` element is the digest in hexadecimal.
    """
    if datatype == BYTES:
        text = digest.hex().encode()
        return frame([text]) * count
    pattern = _pattern(digest, datatype)
    size_bytes = count * ITEM_BYTES[datatype]
    return (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]


def _pattern(digest: bytes, datatype: str) -> bytes:
    values = np.frombuffer(digest, np.uint8)
    match datatype:
        case "UINT8":
            return digest
        case "INT8":
            return (values >> 1).tobytes()
        case "BOOL":
            return (values & 1).tobytes()
        case "BF16":  # the upper half of FP32, exact for these numbers
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        case _:
            return values.astype(NUMPY_TYPES[datatype]).tobytes()


def output_shape(spec: TensorSpec, signature: Signature, request: Request) -> tuple[int, ...]:
    """The shape of an output: its free dims are those of the inputs in order, 1 beyond them."""
    sent = {tensor.name: tensor.shape for tensor in request.inputs}
    rows = 1 if signature.batched else 0
    free = iter(
        size
        for one in signature.inputs
        if one.name in sent
        for dim, size in zip(one.dims, sent[one.name][rows:], strict=False)
        if dim < 0
    )
    dims = tuple(next(free, 1) if dim < 0 else dim for dim in spec.dims)
    return (request.rows, *dims) if signature.batched else dims


class AnswerWriter:
    """Writes the answers of batches into one arena, where they stay until they are delivered."""

    def __init__(self, arenas: ArenaMap, size_bytes: int) -> None:
        self._arenas = arenas
        self._arena = Arena.create(size_bytes)
        self._blocks: dict[int, int] = {}
        arenas.add(self._arena)

    def write(self, run: Run, model: Model) -> tuple[tuple[Tensor, ...], ...] | None:
        """One tuple of tensors for each request of the batch; ``None`` if there is no room."""
        made = [self._answer(request, model) for request in run.batch.requests]
        parts = [content for one in made for _, _, content in one]
        size_bytes = sum(map(len, parts))
        offset = self._arena.alloc(max(1, size_bytes))
        if offset is None:
            return None
        self._blocks[run.batch.id] = offset
        self._arena.memory[offset : offset + size_bytes] = b"".join(parts)
        found = []
        for one in made:
            tensors = []
            for spec, shape, content in one:
                span = Span(self._arena.number, offset, len(content))
                tensors.append(Tensor(spec.name, spec.datatype, shape, span))
                offset += len(content)
            found.append(tuple(tensors))
        return tuple(found)

    def free(self, batch: int) -> None:
        """The batch's answers are delivered, or nobody gets them; unknown batches pass."""
        offset = self._blocks.pop(batch, None)
        if offset is not None:
            self._arena.free(offset)

    def close(self) -> None:
        self._arenas.forget(self._arena.number)
        self._arena.close()

    def _answer(
        self, request: Request, model: Model
    ) -> list[tuple[TensorSpec, tuple[int, ...], bytes]]:
        view = self._arenas.view
        digest = request_digest(model.name, [(one.name, view(one.span)) for one in request.inputs])
        wanted = request.outputs
        found = []
        for spec in model.signature.outputs:
            if wanted and spec.name not in wanted:
                continue
            shape = output_shape(spec, model.signature, request)
            found.append((spec, shape, filled(digest, spec.datatype, element_count(shape))))
        return found


#: What a model takes on this kind of accelerator; raises what keeps it from being served.
FindProfile = Callable[[Model], Profile]


class AnsweringDevice:
    """``SimulatedDevice`` for registered models, whose requests get ``AnswerWriter``'s answers.

    They are written when a batch begins, so that its end waits for nothing.
    """

    def __init__(
        self, gpu: Gpu, timer: Timer, answers: AnswerWriter, find: FindProfile, physics: Physics
    ) -> None:
        self._models: dict[str, Model] = {}
        self._profiles: dict[str, Profile] = {}
        self._find = find
        self._answers = answers
        self._written: dict[int, tuple[tuple[Tensor, ...], ...] | None] = {}
        self.simulated = SimulatedDevice(gpu, timer, self._profiles, physics=physics)

    @property
    def gpu(self) -> Gpu:
        return self.simulated.gpu

    def register(self, model: Model) -> None:
        """Make a model known by its profile; raises as ``FindProfile``."""
        self._profiles[model.key] = self._find(model)
        self._models[model.key] = model

    def forget(self, key: str) -> None:
        self.simulated.forget(key)
        self._profiles.pop(key, None)
        self._models.pop(key, None)

    def do(self, work: Work, done: Done) -> None:
        if not isinstance(work, Run):
            self.simulated.do(work, done)
            return
        self.simulated.do(work, lambda finished: done(self._answered(work, finished)))
        model = self._models.get(work.batch.model)
        if model is not None:
            self._written[work.batch.id] = self._answers.write(work, model)

    def free(self, batch: int) -> None:
        self._answers.free(batch)

    def cancel_run(self, work: CancelRun) -> None:
        """Nobody's code runs here."""

    def cancel_fetch(self, model: str) -> None:
        self.simulated.cancel_fetch(model)

    def on_event(self, lost: Callable[[PartitionLost], None]) -> None:
        self.simulated.on_event(lost)

    def close(self) -> None:
        self.simulated.close()

    def _answered(self, run: Run, finished: WorkFinished) -> WorkFinished:
        outputs = self._written.pop(run.batch.id, None)
        if finished.failure is not None:
            self._answers.free(run.batch.id)
            return finished
        if outputs is None:
            full = Failure("no room for its answers: earlier ones are not delivered yet")
            return WorkFinished(run, failure=full)
        return WorkFinished(run, outputs, timing=finished.timing)


_CLOCK_MONOTONIC: Final = 1
_LEAST_NS: Final = 1_000  #: a timer of 0 ns is a timer that is off


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class WallTimer:
    """The ``Timer`` of simulated devices in real time: one kernel timer for all of them.

    libuv rounds timers to milliseconds; a timerfd in the loop's poll ends within some 0.05 ms.
    Calls at equal times run in the order they were asked for, none inside ``call_at``. One thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where the system has no such timer."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer from the system (timerfd_create)")
        self._loop = loop
        self._start_s = time.perf_counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._spec = _TimerSpec()
        loop.add_reader(self._fd, self._due)

    def now_ms(self) -> float:
        return (time.perf_counter() - self._start_s) * 1000.0

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        entry = (at_ms, next(self._sequence), call)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._set(at_ms)

    def close(self) -> None:
        """Forget every call; a second time does nothing."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._heap.clear()

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew since it ran out
        # What a call asks for in turn waits for the next look, so that the loop gets on.
        look = self.now_ms(), next(self._sequence)
        try:
            while self._heap and self._heap[0][0] <= look[0] and self._heap[0][1] < look[1]:
                heapq.heappop(self._heap)[2]()
        finally:  # what is left of these where one raised has its turn at once
            if self._heap:
                self._set(self._heap[0][0])

    def _set(self, at_ms: float) -> None:
        if self._fd < 0:
            return
        after_ns = max(_LEAST_NS, int((at_ms - self.now_ms()) * 1e6))
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(after_ns, 1_000_000_000)
        self._settime(self._fd, 0, ctypes.byref(self._spec), None)
