"""Simulated accelerators in real time: when batches end, and what that costs the processor.

Beside the timer that they have, the event loop's own, in the same run: batches of random lengths on
one accelerator, then on several at once, each of them busy.
"""

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable
from typing import Annotated

import uvloop

from bench.harness import Report, Row, main, percentile
from interlace.core.hardware import Gpu
from interlace.core.messages import CreatePartition, Load, Run, WorkFinished
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Batch, Request
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec
from interlace.device.simulated.answers import AnsweringDevice, AnswerWriter
from interlace.device.simulated.physics import Physics
from interlace.device.simulated.running_batches import Timer
from interlace.device.simulated.wall_timer import WallTimer
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

#: A batch of so many rows takes 1 ms and 0.37 ms a row, so that few end on a whole millisecond.
ROWS = 32
MODEL = Model(
    "m", 1, Format.PROFILE, "", "m",
    Signature((TensorSpec("x", "FP32", (64,)),), (TensorSpec("y", "FP32", (256,)),), True, ROWS),
    ServiceTerms(100.0),
)  # fmt: skip


def _profile(model: Model) -> Profile:
    points = {}
    for rows in range(1, ROWS + 1):
        took_ms = 1.0 + 0.37 * rows
        points[(rows, 100)] = LatencyPoint(took_ms, took_ms, took_ms, 1)
    return Profile(model.key, "m", "test", 1, 1, points)


class _Busy:
    """One accelerator that is given the next batch when one has ended."""

    def __init__(self, device: AnsweringDevice, timer: Timer, span: Span, seed: int) -> None:
        self._device, self._timer, self._span = device, timer, span
        self._pick = random.Random(seed)
        self._ids = seed * 1_000_000
        self.late_ms: list[float] = []
        self.requests = 0
        self.stopped = False

    def begin(self, finished: WorkFinished | None = None) -> None:
        gpu = self._device.gpu.id
        self._device.do(CreatePartition(gpu, "p", 100), self._load)

    def _load(self, finished: WorkFinished) -> None:
        self._device.do(Load(self._device.gpu.id, "p", MODEL.key), self._next)

    def _next(self, finished: WorkFinished) -> None:
        if self.stopped:
            return
        rows = self._pick.randint(1, ROWS)
        self._ids += 1
        sent = (Tensor("x", "FP32", (1, 64), self._span),)
        members = tuple(Request(at, MODEL.key, 0.0, 1e9, inputs=sent) for at in range(rows))
        self._due_ms = self._timer.now_ms() + 1.0 + 0.37 * rows
        run = Run(self._device.gpu.id, "p", Batch(self._ids, MODEL.key, members, rows))
        self._device.do(run, self._ended)

    def _ended(self, finished: WorkFinished) -> None:
        self.late_ms.append(self._timer.now_ms() - self._due_ms)
        assert finished.failure is None and isinstance(finished.work, Run)
        self.requests += finished.work.batch.rows
        self._device.free(finished.work.batch.id)
        self._next(finished)


async def _busy(
    make: Callable[[asyncio.AbstractEventLoop], Timer], gpus: int, seconds: float
) -> tuple[list[float], float]:
    """How late batches ended, in ms, and processor time a request, in us."""
    timer = make(asyncio.get_running_loop())
    arena, arenas = Arena.create(1 << 20), ArenaMap(os.getpid())
    arenas.add(arena)
    offset = arena.alloc(256)
    assert offset is not None
    answers = AnswerWriter(arenas, 1 << 30)
    span = Span(arena.number, offset, 256)
    busy = []
    for at in range(gpus):
        gpu = Gpu(f"gpu{at}", "test", 1, 10**9, (100,))
        device = AnsweringDevice(gpu, timer, answers, _profile, Physics())
        device.register(MODEL)
        busy.append(_Busy(device, timer, span, at + 1))
        busy[-1].begin()
    await asyncio.sleep(0.5)
    for one in busy:
        one.late_ms.clear()
        one.requests = 0
    gc.collect()
    began_s = time.process_time()
    await asyncio.sleep(seconds)
    used_us = 1e6 * (time.process_time() - began_s)
    late_ms = [late for one in busy for late in one.late_ms]
    requests = sum(one.requests for one in busy)
    for one in busy:
        one.stopped = True
    await asyncio.sleep(0.1)
    if isinstance(timer, WallTimer):
        timer.close()
    answers.close()
    arena.close()
    return late_ms, used_us / requests


def simulated_node(
    *,
    gpus: Annotated[int, "accelerators that are busy at once, beside one alone"] = 16,
    seconds: Annotated[float, "of each measurement"] = 5.0,
) -> Report:
    """How late batches end against their profile, and processor time a request."""
    found: list[Row] = []
    for count in (1, gpus):
        for name, make in (("own timer", WallTimer), ("loop's timer", WallClock)):
            late_ms, request_us = uvloop.run(_busy(make, count, seconds))  # the server's loop
            what = f"{count} GPU, {name}"
            for part_pct in (1, 50, 99):
                late = percentile(late_ms, part_pct) or 0.0
                found.append(Row(f"{what}: end late, p{part_pct}", None, late, " ms"))
            found.append(Row(f"{what}: processor a request", None, request_us, " us"))
    return Report(found)


if __name__ == "__main__":
    main(simulated_node)
