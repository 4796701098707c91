"""One process that holds a GPU, as the main process sees it: work as frames, answers, faults."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Evict,
    Failure,
    Fetch,
    Load,
    PartitionWork,
    ReleasePartition,
    Run,
    Unload,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.core.request import Batch
from interlace.device.base import Done
from interlace.device.cuda.settings import CudaSettings
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
    StagedInputs,
    StageInputs,
    StageRequest,
    ToGpu,
    decode_from_gpu,
)
from interlace.device.process.batch_frames import failure_of, finish, finish_run, run_frame
from interlace.device.process.link import FrameProtocol, PendingRequest, Spawn, WorkerLink
from interlace.device.process.output_arena import HeldBatches, OutputArena
from interlace.device.process.wire import (
    Column,
    EvictWeights,
    LoadModel,
    RunBatch,
    Starved,
    UnloadModel,
)
from interlace.shm.arena import Arena

OnAnswer = Callable[[GpuAnswer | Failure], None]


class FaultLog:
    """Open requests by line, and the line that is blamed when the process ends.

    The rule: a line is to blame if it was the only one under way when the process ended; if there
    were several, none is, and each is tried again alone. Fatal failures are held back until
    ``verdicts``: their receivers may send new work at once, which must not meet a half-dead device.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._culprits: frozenset[str] | None = None
        self._held_back: list[tuple[str, Callable[[], None]]] = []
        self._judged = False

    def track(self, request: GpuRequest, answer: OnAnswer) -> OnAnswer:
        """Count a request as open; give its answer to what is returned instead of ``answer``."""
        self._open[request.line] += 1

        def answered(result: GpuAnswer | Failure) -> None:
            if isinstance(result, Failure) and result.fatal:
                if not self._judged:
                    verdict = self._verdict(result, request)
                    self._held_back.append((request.partition, partial(answer, verdict)))
                    return
                result = replace(result, innocent=True)  # sent after the cause
            self._open[request.line] -= 1
            answer(result)

        return answered

    def blame(self, under_way: Collection[str]) -> None:
        """These lines were under way when the process ended. Only the first call counts."""
        if self._culprits is None:
            self._culprits = frozenset(under_way) if len(under_way) == 1 else frozenset()

    def verdicts(self) -> dict[str, list[Callable[[], None]]]:
        """Answers held back, as calls by partition, the blamed one first.

        Failures that come after this call are answered at once.
        """
        self._judged = True
        found: dict[str, list[Callable[[], None]]] = {}
        guilty = self._culprits or frozenset()
        self._held_back.sort(key=lambda one: not {one[0], f"{one[0]}+"} & guilty)
        for partition, answer in self._held_back:
            found.setdefault(partition, []).append(answer)
        self._held_back.clear()
        return found

    def _verdict(self, failure: Failure, request: GpuRequest) -> Failure:
        # If the process did not say what was under way, all that is open was.
        self.blame([line for line, count in self._open.items() if count > 0])
        # Killed from outside during a batch: once that is chance, twice it is not.
        spared = failure.innocent and isinstance(request.what, RunBatch) and not request.alone
        return replace(failure, innocent=spared or request.line not in (self._culprits or ()))


_log = logging.getLogger(__name__)

OnStarted = Callable[[Failure | None], None]
_STAGE: Final = "+"  #: the line of inputs on their way


class GpuProcess:
    """Translates work into frames and answers into ``WorkFinished``.

    Batches of a partition are answered in one line, its other work in another, since loading goes
    on beside serving. A process that only keeps weights has no ``arena`` for outputs.
    ``partitions`` are those that were carved or are being carved.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        setup: GpuSetup,
        arena: Arena | None,
        held: HeldBatches,
        settings: CudaSettings,
        on_dead: Callable[[GpuProcess, str], None],
    ) -> None:
        self.partitions: set[str] = set()
        self.releasing: set[str] = set()
        self.ready = False
        self.broken = False  #: the GPU failed in it
        self.took_s: dict[str, float] = {}  #: the steps of its start
        self.faults = FaultLog()
        self._worn = False
        self._setup = setup
        self.rest_us = setup.rest_us
        self._settings = settings
        self._on_started: OnStarted = lambda failure: None
        self._releases: list[Callable[[], None]] = []
        self._stages = StageBatcher(loop, self._stage)
        protocol = FrameProtocol(decode_from_gpu, self._heard)
        self.link: WorkerLink[ToGpu, FromGpu, GpuAnswer] = WorkerLink(
            loop, settings.gpu.id, protocol, partial(on_dead, self)
        )
        self.outputs = None if arena is None else OutputArena(held, arena, self.link.tell)

    def start(self, spawn: Spawn, on_started: OnStarted) -> None:
        """Start the process; ``on_started`` is called when it is ready or has failed.

        Raises:
            OSError: no file descriptor is left.
        """
        self._on_started = on_started
        limit_s = self._settings.limits.carve_s
        question: PendingRequest[GpuAnswer] = PendingRequest(self._started, limit_s, "start")
        self.link.start(spawn, self._setup, question)

    def carve(self, work: CreatePartition, done: Done) -> None:
        self.partitions.add(work.partition)
        what = CarveLane(work.share_pct, work.leaving)
        self._change(work, what, partial(self._carved, work, done))

    def load(self, work: Load, model: Model, done: Done) -> None:
        what = LoadModel(model, work.batches, work.cold)
        self._change(work, what, partial(finish, work, done))

    def unload(self, work: Unload, done: Done) -> None:
        self._change(work, UnloadModel(work.model), partial(finish, work, done))

    def run(self, work: Run, done: Done) -> None:
        """Execute a batch, from its model's ring if its rows are staged there.

        Raises:
            ValueError: the batch cannot be put in a frame.
        """
        batch = work.batch
        assert self.outputs is not None, "a batch for a process that only keeps weights"
        frame = run_frame(batch, self.outputs.freed, staged_columns(batch))
        slot = -1 if batch.slot is None else batch.slot
        what = f"batch {batch.id} of {batch.model}"
        name = work.partition
        asked = GpuRequest(name, name, frame, slot, alone=batch.attempt > 1)
        finished = partial(finish_run, work, self.outputs, name, done, True)
        if self._ask(asked, finished, work.limit_ms / 1000.0, what):
            self.outputs.told()

    def stage(self, work: CopyInputs, done: Done) -> None:
        """Copy a request's inputs to its model's ring on the GPU."""
        self._stages.add(work, done)

    def move(self, work: Fetch | Evict, done: Done) -> None:
        """Weights come or go; in a line of their own, since they do so beside batches."""
        what = f"{type(work).__name__.lower()} {work.model}"
        if isinstance(work, Fetch):
            steps, brought = work.plan.steps, work.plan.brought
            links = tuple(steps[at].link for at in brought)
            frame = FetchWeights(work.model, brought, links, len(steps))
            asked = GpuRequest(what, work.partition, frame)
        else:
            asked = GpuRequest(what, "", EvictWeights(work.model, work.layers))
        moved = partial(finish, work, done)
        self._ask(asked, moved, self._settings.limits.load_s, what)

    def cancel_fetch(self, model: str) -> None:
        self.link.tell(DropFetch(model))

    def forget(self, model: str) -> None:
        """Nothing of a model is staged any more."""
        self._stages.send()
        self.link.tell(ForgetInputs(model))

    def release(self, work: ReleasePartition, done: Done) -> None:
        """Give the lane back after what it was asked; a private process ends with it."""
        self.releasing.add(work.partition)
        self._change(work, ReleaseLane(), partial(self._released, work, done))

    def fall(self, cause: str) -> None:
        """End it now, for something that it has no part in."""
        self.faults.blame(())
        self.link.close(cause)

    def buried(self) -> None:
        """The process has ended: answer the releases that waited for that."""
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def _change(
        self,
        work: PartitionWork,
        what: CarveLane | ReleaseLane | LoadModel | UnloadModel,
        answer: Callable[[GpuAnswer | Failure], None],
    ) -> None:
        limits = self._settings.limits
        limit_s = limits.carve_s if isinstance(work, CreatePartition) else limits.load_s
        named = getattr(work, "model", work.partition)
        asked = GpuRequest(f"{work.partition}+", work.partition, what)
        self._ask(asked, answer, limit_s, f"{type(work).__name__.lower()} {named}")

    def _stage(self, frame: StageInputs, answer: Callable[[GpuAnswer | Failure], None]) -> None:
        what = f"inputs of {len(frame.requests)} requests"
        self._ask(GpuRequest(_STAGE, "", frame), answer, self._settings.limits.stage_s, what)

    def _ask(
        self,
        asked: GpuRequest,
        answer: Callable[[GpuAnswer | Failure], None],
        limit_s: float,
        what: str,
    ) -> bool:
        heard = self.faults.track(asked, answer)
        question: PendingRequest[GpuAnswer] = PendingRequest(heard, limit_s, what)
        return self.link.ask(asked, question, asked.line)

    # ----------------------------------------------------------------------------------- answers

    def _heard(self, frame: FromGpu) -> tuple[str, GpuAnswer] | None:
        match frame:
            case GpuReply(line=line, answer=answer):
                return line, answer
            case GpuFailed(detail=detail, lines=lines):
                self.broken = True
                self.faults.blame(lines)
                self.link.kill(detail)
            case Notice(text=text):
                _log.info("%s: %s", self._settings.gpu.id, text)
            case RestartWanted():
                self._worn = True
            case Starved(line=line):
                # That replies are not delivered is not the GPU's fault: its batch gets more time.
                self.link.questions.extend(line, self._settings.patience_s)
                if self.outputs is not None:
                    self.outputs.starve(line)
        return None

    def _started(self, answer: GpuAnswer | Failure) -> None:
        failure = failure_of(answer)
        if isinstance(answer, GpuReady):
            self.took_s = dict(answer.took_s)
            _log.info("%s: %s", self._settings.gpu.id, _start_words(answer))
            failure = self._cut_otherwise(answer)
        self.ready = failure is None
        if failure is not None and not failure.fatal:
            self.link.close(failure.detail)
        self._on_started(failure)

    def _cut_otherwise(self, ready: GpuReady) -> Failure | None:
        """Why shares would overlap in plans made for this GPU; ``None`` if they would not."""
        told, (count, sms) = self._settings.gpu.blocks, ready.blocks
        if not told[0] or (told[1] == sms and told[0] <= count):
            return None
        name = self._settings.gpu.id
        return Failure(
            f"{name}: the driver cuts it into {count} blocks of {sms} SMs, but plans are made for "
            f"{told[0]} of {told[1]}: start the server anew"
        )

    def _carved(self, work: CreatePartition, done: Done, answer: GpuAnswer | Failure) -> None:
        failure = failure_of(answer)
        if failure is not None and not (self.ready and failure.fatal):
            # Nobody ever had it. It is no loss, which would be mended at once, again and again.
            self._forget(work.partition)
            failure = Failure(failure.detail)
        units = answer.units if isinstance(answer, Carved) else ()
        done(WorkFinished(work, failure=failure, units=units))

    def _released(self, work: ReleasePartition, done: Done, answer: GpuAnswer | Failure) -> None:
        failure = failure_of(answer)
        if failure is not None and not failure.fatal:
            self.releasing.discard(work.partition)
            done(WorkFinished(work, failure=failure))
            return
        if failure is None and not self._settings.private:
            self._forget(work.partition)
            done(WorkFinished(work))
            self._renew()
            return
        self._releases.append(partial(done, WorkFinished(work)))  # the process ends with it, or has
        self.link.finish()

    def _renew(self) -> None:
        """Restart it after a failed capture, once it has no partitions and keeps no models."""
        if self._worn and not self.partitions and not self._settings.keep_bytes:
            _log.info("%s: its process is started anew", self._settings.gpu.id)
            self.link.close("it is started anew after a failed capture", kill=False)

    def _forget(self, partition: str) -> None:
        self.partitions.discard(partition)
        self.releasing.discard(partition)


def _start_words(ready: GpuReady) -> str:
    steps = ", ".join(f"{name} {took_s:.1f}" for name, took_s in ready.took_s)
    count, sms = ready.blocks
    cut = f", in {count} blocks of {sms} SMs" if count else ""
    return f"its process started in {sum(s for _, s in ready.took_s):.1f} s ({steps}){cut}"


def staged_columns(batch: Batch) -> tuple[Column, ...] | None:
    """The columns of a staged batch, without places: its slot says where the rows are."""
    if batch.slot is None or not batch.requests:
        return None
    return tuple(
        Column(tensor.name, tensor.datatype, tensor.shape, (), (), ())
        for tensor in batch.requests[0].inputs
    )


#: Requests in a frame at most, which has a limit in bytes.
_FRAME_MAX: Final = 128

Ask = Callable[[StageInputs, Callable[[GpuAnswer | Failure], None]], None]


class StageBatcher:
    """Gathers what is to be staged and asks for it together; each is ended alone, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ask: Ask) -> None:
        self._loop = loop
        self._ask = ask
        self._waiting: list[tuple[CopyInputs, Done]] = []

    def add(self, work: CopyInputs, done: Done) -> None:
        """Ask for it before the loop waits again."""
        if not self._waiting:
            self._loop.call_soon(self.send)
        self._waiting.append((work, done))
        if len(self._waiting) == _FRAME_MAX:
            self.send()

    def send(self) -> None:
        """Ask for what there is, now."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            frame = StageInputs(tuple(_part(work) for work, _ in waiting))
            self._ask(frame, partial(_answered, waiting))


def _part(work: CopyInputs) -> StageRequest:
    request = work.request
    inputs = tuple((tensor.name, *tensor.span) for tensor in request.inputs)
    return StageRequest(request.model, work.slot, work.slots, request.rows, inputs)


def _answered(asked: list[tuple[CopyInputs, Done]], answer: GpuAnswer | Failure) -> None:
    failures: list[Failure | None] = [answer if isinstance(answer, Failure) else None] * len(asked)
    if isinstance(answer, StagedInputs):
        failures = [Failure(detail) if detail else None for detail in answer.failures]
    for (work, done), failure in zip(asked, failures, strict=True):
        done(WorkFinished(work, failure=failure))
