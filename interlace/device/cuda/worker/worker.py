"""The process that holds a GPU: frames in, launches, ends of batches, answers out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.models.swapped_weights import SwappedWeights
from interlace.device.cuda.worker.batch_runner import BatchRunner
from interlace.device.cuda.worker.context import GpuContext, weight_server_models
from interlace.device.cuda.worker.model_cache import freeze_heap
from interlace.device.cuda.worker.partition import (
    GpuPartition,
    PartitionChange,
    PartitionChanges,
    WaitingBatch,
)
from interlace.device.cuda.worker.weight_fetcher import Answers
from interlace.device.cuda.worker.weight_server import WeightServer
from interlace.device.cuda.worker.wire import (
    Carved,
    CarveLane,
    DropFetch,
    FetchWeights,
    ForgetInputs,
    FromGpu,
    GpuAnswer,
    GpuFailed,
    GpuReady,
    GpuReply,
    GpuRequest,
    GpuSetup,
    Notice,
    ReleaseLane,
    RestartWanted,
    StageInputs,
    ToGpu,
    decode_to_gpu,
)
from interlace.device.process.error_text import error_text
from interlace.device.process.wire import (
    EvictWeights,
    Failed,
    ForgetArena,
    FreeBatches,
    LoadModel,
    Ready,
    RunBatch,
    Starved,
    UnloadModel,
)
from interlace.shm.frame_socket import BlockingFrameSocket

#: How often a GPU that works is asked whether it still does: a flag tells no error.
_CHECK_S: Final = 0.25
#: To be woken by a descriptor takes about as long.
_LOOK_S: Final = 4e-5


class GpuWorker:
    """Carries out what frames ask for, on all partitions beside each other.

    Nothing here blocks: what takes time is done by the loader's thread.
    """

    def __init__(
        self, frames: BlockingFrameSocket[FromGpu, ToGpu], context: GpuContext, patience_s: float
    ) -> None:
        self._frames = frames
        self._context = context
        self._partitions: dict[str, GpuPartition] = {}
        self._changes = PartitionChanges(context, self._changed, self._answer_all)
        self._batches = BatchRunner(
            context,
            self._partitions,
            patience_s,
            self._answer,
            lambda line: frames.send(Starved(line)),
            self._changes.begin,
        )
        self._checked_s = time.monotonic()
        self._open = True
        self._worn = False
        self._selector = selectors.DefaultSelector()
        for source, heard in self._sources().items():
            self._selector.register(source, selectors.EVENT_READ, heard)

    def serve(self) -> None:
        """Until the other end is closed.

        Raises:
            CudaError: the GPU failed, and the process must end; the other end was told.
        """
        try:
            while self._open:
                self._hear()
                self._batches.look()
                self._check()
        except CudaError as error:
            changing = (one.changes[0].line for one in self._partitions.values() if one.changing)
            lines = (*self._batches.lines, *changing, *self._context.fetcher.lines)
            self._frames.send(GpuFailed(str(error), lines))
            raise

    @property
    def in_flight(self) -> bool:
        """Whether the GPU works on a batch, on inputs, or has weights on their way."""
        moving = self._context.stager.busy or any(self._context.fetcher.lines)
        return self._batches.in_flight or moving

    def _sources(self) -> dict[int, Callable[[], None]]:
        return {
            self._frames.fileno(): self._read,
            self._context.completions.fileno(): self._batches.ended,
            self._context.loader.fileno(): self._context.loader.drain,
        }

    def _hear(self) -> None:
        """Sleep until something can be read, but first look a moment for the end of a batch."""
        found = self._selector.select(0)
        if not found and self.in_flight and self._context.completions.look(_LOOK_S):
            self._batches.ended()
            return
        for key, _ in found or self._selector.select(self._timeout_s()):
            key.data()

    def _timeout_s(self) -> float | None:
        until_s = self._batches.patient_until_s
        if self.in_flight:
            check_s = self._checked_s + _CHECK_S
            until_s = check_s if until_s is None else min(until_s, check_s)
        return None if until_s is None else max(0.0, until_s - time.monotonic())

    def _check(self) -> None:
        now_s = time.monotonic()
        if self.in_flight and now_s - self._checked_s >= _CHECK_S:
            self._context.completions.check()
            self._checked_s = now_s

    # ---------------------------------------------------------------------------------- frames
    def _read(self) -> None:
        frame = self._frames.receive()
        match frame:
            case None:
                self._open = False
            case FreeBatches(batches=batches):
                self._batches.free(batches)
            case GpuRequest():
                self._asked(frame)
            case ForgetInputs(model=model):
                self._context.stager.forget(model)
            case ForgetArena(arena=number):
                self._forget_arena(number)
            case DropFetch(model=model):
                self._answer_all(self._context.fetcher.cancel(model))
            case _:
                raise ValueError(f"a {type(frame).__name__} frame is not expected here")

    def _forget_arena(self, number: int) -> None:
        try:
            self._context.arenas.forget(number)
        except CudaError as error:
            if error.sticky:  # else it only stays mapped
                raise

    def _asked(self, asked: GpuRequest) -> None:
        line, name = asked.line, asked.partition
        match asked.what:
            case RunBatch() as run:
                self._run(asked, run)
            case StageInputs() as stage:
                failed = self._context.stager.begin(line, stage)
                if failed is not None:
                    self._answer(line, failed)
            case FetchWeights() as fetch:
                weights = self._weights(fetch.model)
                self._answer_all(self._context.fetcher.fetch(line, weights, fetch))
            case EvictWeights() as evict:
                weights = self._weights(evict.model)
                self._answer(line, self._context.fetcher.evict(weights, evict))
            case CarveLane() as what:
                self._answer(line, self._carve(name, what))
            case LoadModel() | UnloadModel() | ReleaseLane() as what:
                self._change(name, PartitionChange(line, what))

    def _run(self, asked: GpuRequest, run: RunBatch) -> None:
        if run.freed:
            self._batches.free(run.freed)
        partition = self._partitions.get(asked.partition)
        served = None if partition is None else partition.models.get(run.model)
        if partition is None:
            self._answer(asked.line, Failed(f"no partition '{asked.partition}' here"))
        elif served is None:
            self._answer(asked.line, Failed(f"model {run.model} is not loaded here"))
        else:
            self._batches.run(partition, WaitingBatch(asked, run, served))

    def _weights(self, key: str) -> SwappedWeights | None:
        found = (one.models[key] for one in self._partitions.values() if key in one.models)
        served = next(found, None)
        return None if served is None else served.cold

    def _carve(self, name: str, what: CarveLane) -> GpuAnswer:
        try:
            lane = self._context.lanes.carve(name, what.share_pct, what.leaving)
        except (CudaError, ValueError) as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            return Failed(str(error))
        self._partitions[name] = GpuPartition(name, lane)
        return Carved(lane.units)

    def _change(self, name: str, change: PartitionChange) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            self._answer(change.line, Failed(f"no partition '{name}' here"))
            return
        partition.changes.append(change)
        self._changes.begin(partition)

    # --------------------------------------------------------------------------------- answers
    def _changed(self, partition: GpuPartition, line: str, answer: GpuAnswer, gone: bool) -> None:
        if gone:
            del self._partitions[partition.name]
        if self._context.worn and not self._worn:
            self._worn = True
            self._frames.send(RestartWanted())
        self._answer(line, answer)

    def _answer_all(self, answers: Answers) -> None:
        for line, answer in answers:
            self._answer(line, answer)

    def _answer(self, line: str, answer: GpuAnswer) -> None:
        self._frames.send(GpuReply(line, answer))


Note = Callable[[str], None]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_TIMERSLACK: Final = 29
_SLACK_NS: Final = 1_000  #: With the usual 50 us a rest of 20 us would take 70 us.
_OOM_SCORE: Final = "500"  # When memory runs out, a worker is ended before the server.
#: The main loop and the loader share one interpreter: launches do not wait for 5 ms of Python.
_SWITCH_S: Final = 1e-4
GPU_FAILED: Final = 70  #: exit code when the GPU failed: what it held is not given back piecemeal


def main(descriptor: int, owner_pid: int, name: str) -> None:
    """Serve frames until the owner closes its end; the first frame is ``GpuSetup``."""
    _settle(owner_pid, name)
    frames: BlockingFrameSocket[FromGpu, ToGpu] = BlockingFrameSocket(
        socket.socket(fileno=descriptor), decode_to_gpu
    )
    status = 0
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            status = _serve(frames)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the driver and of torch have nothing more to say


def _serve(frames: BlockingFrameSocket[FromGpu, ToGpu]) -> int:
    setup = frames.receive()
    if setup is None:
        return 0

    def note(text: str) -> None:
        with contextlib.suppress(OSError):  # the other end is closed: nobody reads it
            frames.send(Notice(text))

    try:
        if not isinstance(setup, GpuSetup):
            raise ValueError(f"a {type(setup).__name__} frame is not expected here")
        if setup.lends:
            return _keep(setup, frames, note)
        context = GpuContext(setup, note)
    except Exception as error:
        frames.send(GpuReply("", Failed(error_text("the GPU's process could not start", error))))
        return 0
    worker = GpuWorker(frames, context, setup.patience_s)
    freeze_heap()
    frames.send(GpuReply("", GpuReady(context.lanes.blocks, context.took_s)))
    try:
        worker.serve()
    except CudaError:
        return GPU_FAILED
    if worker.in_flight or not context.loader.idle:
        return 0  # nobody waits for it: the driver gives everything back when the process ends
    context.close()
    return 0


def _keep(setup: GpuSetup, frames: BlockingFrameSocket[FromGpu, ToGpu], note: Note) -> int:
    with ExitStack() as steps:
        server = WeightServer(
            setup.lends, frames.fileno(), *weight_server_models(setup, note, steps)
        )
        frames.send(GpuReply("", Ready()))
        server.serve()
    return 0


def _settle(owner_pid: int, name: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the main process drains, then closes the socket
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner_pid:
        os._exit(0)  # it died before it could be watched
    library.prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)
    library.prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)  # of threads made from now on, too
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
