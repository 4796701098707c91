"""One partition: a worker, its cores, its output memory, and what its replies still refer to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from interlace.core.messages import (
    CancelRun,
    CreatePartition,
    Failure,
    Load,
    ReleasePartition,
    Run,
    Unload,
    WorkFinished,
)
from interlace.core.metric_change import MetricChange
from interlace.core.model import Model
from interlace.core.request import PartialResponse
from interlace.device.base import Done
from interlace.device.cpu.outgoing_calls import OutgoingCalls
from interlace.device.process.batch_frames import (
    error_of,
    failure_of,
    finish,
    finish_run,
    run_frame,
)
from interlace.device.process.link import FrameProtocol, PendingRequest, WorkerLink, WorkTimeouts
from interlace.device.process.output_arena import HeldBatches, OutputArena
from interlace.device.process.spawner import ForkServerSpawner
from interlace.device.process.wire import (
    BatchResult,
    CallAnswered,
    CallModel,
    CallsLeft,
    CancelRequest,
    Column,
    Copied,
    CopyWeights,
    EvictWeights,
    Failed,
    ForgetArena,
    FromWorker,
    GiveArena,
    Loaded,
    LoadModel,
    MetricsChanged,
    PlaceWeights,
    ReadinessChanged,
    Responded,
    Starved,
    StopCopying,
    ToWorker,
    UnloadModel,
    Waits,
    WorkerAnswer,
    WorkerSetup,
    decode_from_worker,
)
from interlace.shm.arena import Arena, ArenaMap

CpuWorkerLink = WorkerLink[ToWorker, FromWorker, WorkerAnswer]
Answer = Callable[[WorkerAnswer | Failure], None]


class CpuPartition:
    """Translates work into frames for its worker and answers into ``WorkFinished``.

    Its inputs lie in ``arenas``; ``held`` are the batches of the whole device whose replies are
    not delivered yet. ``respond`` receives responses before their batch has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        setup: WorkerSetup,
        arena: Arena,
        arenas: ArenaMap,
        held: HeldBatches,
        limits: WorkTimeouts,
        on_dead: Callable[[CpuPartition, str], None],
        respond: Callable[[PartialResponse], None],
    ) -> None:
        self.name = setup.name
        self.cores = setup.cores
        self.blamed: tuple[str, ...] = ()  #: models for which its worker is ended
        protocol = FrameProtocol(decode_from_worker, self._heard)
        self.link: CpuWorkerLink = WorkerLink(loop, setup.name, protocol, partial(on_dead, self))
        self.setup = setup
        self._respond = respond
        self._limits = limits
        self._arenas = arenas
        self._given: set[int] = set()  #: arenas that the worker has
        self.outputs = OutputArena(held, arena, self.link.tell)
        self._release: Callable[[], None] | None = None
        self._runs: dict[int, Run] = {}  #: batches that are not answered
        self._loads: dict[int, Load] = {}  #: the same of loads, by numbers below 0
        self._numbers = count(-1, -1)
        self._waiting: set[int] = set()  #: those of both that wait, or have waited
        self.unready: set[str] = set()  #: models whose code says so
        self._died = False  #: a batch has failed with its worker
        self.inner: dict[str, CpuPartition] = {}  #: workers in environments of models
        self.calls = OutgoingCalls(self.outputs, self._send_call)
        self.on_waits: Callable[[str, int, int], None] = lambda partition, batch, joins: None
        self.on_metrics: Callable[[Sequence[MetricChange]], None] = lambda changes: None

    def carve(self, work: CreatePartition, spawner: ForkServerSpawner, done: Done) -> None:
        """Start the worker.

        Raises:
            OSError: no file descriptor is left.
        """
        question = PendingRequest(partial(self._carved, work, done), self._limits.carve_s, "start")
        self.link.start(spawner.spawn, self.setup, question)

    def load(
        self, work: Load, model: Model, done: Done, spared: bool, weighed: Callable[[Loaded], None]
    ) -> None:
        """Load a model; ``spared`` if it is not its fault when its worker is killed meanwhile.

        ``weighed`` hears, before ``done``, what the weights of a cold one take, and where they are.
        """
        number = next(self._numbers)
        self._loads[number] = work

        def loaded(answer: WorkerAnswer | Failure) -> None:
            self._end_load(number)
            if work.cold and isinstance(answer, Loaded):
                weighed(answer)
            finish(work, done, answer, spared)

        what, limit_s = f"load {work.model}", self._limits.load_s
        question = PendingRequest[WorkerAnswer](loaded, limit_s, what)
        self.link.ask(LoadModel(model, work.batches, work.cold, number), question)

    def unload(self, work: Unload, done: Done) -> None:
        answer = partial(finish, work, done, spared=False)
        question = PendingRequest(answer, self._limits.load_s, f"unload {work.model}")
        self.unready.discard(work.model)
        self.link.ask(UnloadModel(work.model), question)

    def run(self, work: Run, window: tuple[Column, ...] | None, done: Done) -> None:
        """Execute a batch, in place if its rows lie in a ``window`` of the model's ring.

        Raises:
            ValueError: the batch cannot be put in a frame.
        """
        frame = run_frame(work.batch, self.outputs.freed, window)
        self._give_arenas(one for column in frame.columns for one in column.arenas)
        what = f"batch {work.batch.id} of {work.batch.model}"
        # Killed from outside while it ran a batch: once that is chance, twice it is not.
        spared = work.batch.attempt == 1
        self._runs[work.batch.id] = work
        line = _batch_line(work.batch.id)
        finish = partial(finish_run, work, self.outputs, line, done, spared)
        answer = partial(self._ran, work, finish)
        if self.link.ask(frame, PendingRequest(answer, work.limit_ms / 1000.0, what)):
            self.outputs.told()

    def cancel(self, work: CancelRun) -> None:
        """Tell the code of a model that the client of a request went away."""
        self.link.tell(CancelRequest(work.request_id))

    def copy(self, frame: CopyWeights, answer: Answer) -> None:
        """Copy weights beside what it does in order."""
        what = f"weights of {frame.model}"
        line = _copies(frame.model)

        def answered(told: WorkerAnswer | Failure) -> None:
            self.link.questions.forget(line)
            answer(told)

        self.link.ask(frame, PendingRequest(answered, self._limits.load_s, what), line)

    def stop_copying(self, model: str) -> None:
        """Nobody waits for the weights of a model that are being copied."""
        self.link.tell(StopCopying(model))

    def place(self, frame: PlaceWeights) -> None:
        """Weights lie in memory from the next batch on."""
        self.link.tell(frame)

    def evict(self, frame: EvictWeights, answer: Answer) -> None:
        """Weights are not read in memory after the batches that it was given."""
        what = f"evict weights of {frame.model}"
        self.link.ask(frame, PendingRequest(answer, self._limits.load_s, what))

    def release(self, work: ReleasePartition, done: Done) -> None:
        """End the worker after what it was asked; ``finish_release`` answers."""
        self._release = partial(done, WorkFinished(work))
        self.link.finish()

    @property
    def workers(self) -> tuple[CpuPartition, ...]:
        """This one, and those in environments of models."""
        return self, *self.inner.values()

    @property
    def releasing(self) -> bool:
        """Its end is asked for, not a loss."""
        return self._release is not None

    def finish_release(self) -> None:
        """Answer the ``ReleasePartition``, now that the worker is gone."""
        if self._release is not None:
            self._release()

    def forget_arena(self, number: int) -> None:
        """Inputs lie there no more: the worker drops its mapping."""
        self._given.discard(number)
        self.link.tell(ForgetArena(number))

    def _give_arenas(self, numbers: Iterable[int]) -> None:
        for number in set(numbers) - self._given - {self.outputs.arena.number}:
            if (descriptor := self._arenas.descriptor(number)) is not None:
                self._given.add(number)
                self.link.tell(GiveArena(number), descriptor)

    def _send_call(self, batch: int, frame: CallAnswered, arenas: Iterable[int]) -> None:
        self._give_arenas(arenas)
        self.link.tell(frame)
        self.link.questions.watch_apart(_batch_line(batch), not self.calls.waits(batch))

    def _called(self, frame: CallModel) -> None:
        self._wait(frame.batch)  # before its callee is admitted, which may have its place
        self.link.questions.watch_apart(_batch_line(frame.batch), False)
        if (run := self._runs.get(frame.batch)) is not None:
            self.calls.begin(frame, run)
        elif (load := self._loads.get(frame.batch)) is not None:
            self.calls.begin_load(frame, load.model, self._limits.load_s)

    def _wait(self, batch: int, joins: int = 0) -> None:
        """A batch or load waits: what was asked behind it is answered before it."""
        if batch not in self._waiting and (batch in self._runs or batch in self._loads):
            self._waiting.add(batch)
            self.link.questions.set_apart("", _batch_line(batch))
            if batch in self._runs:
                self.on_waits(self.name, batch, joins)
        if joins:  # it is about to be executed again
            self.link.questions.watch_apart(_batch_line(batch), True)

    def _end_load(self, number: int) -> None:
        del self._loads[number]
        self.calls.end(number)
        if number in self._waiting:
            self._waiting.discard(number)
            self.link.questions.forget(_batch_line(number))

    def _ran(
        self,
        work: Run,
        finish: Callable[[WorkerAnswer | Failure], None],
        answer: WorkerAnswer | Failure,
    ) -> None:
        batch = work.batch.id
        del self._runs[batch]
        said = self.calls.end(batch)
        if isinstance(answer, Failure) and answer.fatal and batch in self._waiting:
            # Its worker died of what it ran meanwhile, if there was anything.
            answer = replace(answer, innocent=answer.innocent or self._died)
        self._died = self._died or (isinstance(answer, Failure) and answer.fatal)
        if batch in self._waiting:
            self._waiting.discard(batch)
            self.link.questions.forget(_batch_line(batch))
        if said and isinstance(answer, BatchResult):
            if answer.held:
                self.outputs.hold(batch)
                self.outputs.delivered(batch)
            answer = Failed(said)
        finish(answer)

    def _heard(self, frame: FromWorker) -> tuple[str, WorkerAnswer] | None:
        if type(frame) is BatchResult and frame.batch not in self._waiting:  # the usual
            return "", frame
        if isinstance(frame, Copied):
            return _copies(frame.model), frame
        if isinstance(frame, CallModel):
            self._called(frame)
            return None
        if isinstance(frame, ReadinessChanged):
            (self.unready.discard if frame.ready else self.unready.add)(frame.model)
            return None
        if isinstance(frame, CallsLeft):
            self.calls.leave(frame)
            return None
        if isinstance(frame, Waits):
            self._wait(frame.batch, frame.joins)
            return None
        if isinstance(frame, MetricsChanged):
            self.on_metrics(frame.changes)
            return None
        if isinstance(frame, BatchResult | Failed | Loaded) and frame.batch in self._waiting:
            return _batch_line(frame.batch), frame
        if isinstance(frame, Responded):
            self._responded(frame)
            return None
        if not isinstance(frame, Starved):
            return "", frame
        # That replies are not delivered is not the worker's fault: its batch gets more time.
        self.link.questions.extend("", self.setup.patience_s)
        for batch in self._runs:
            self.link.questions.extend(_batch_line(batch), self.setup.patience_s)
            self.outputs.starve(_batch_line(batch))
        return None

    def _responded(self, frame: Responded) -> None:
        """Pass a response on; the batch may be silent for as long again."""
        if frame.batch in self._waiting:
            self.link.questions.watch_apart(
                _batch_line(frame.batch), not self.calls.waits(frame.batch)
            )
        else:
            self.link.questions.begin_anew("")
        self.outputs.lend(frame.number)
        release = partial(self.outputs.delivered, frame.number)
        error, outputs = error_of(frame.result), frame.result.outputs
        said = frame.result.parameters
        self._respond(PartialResponse(frame.request, outputs, error, frame.final, release, said))

    def _carved(self, work: CreatePartition, done: Done, answer: WorkerAnswer | Failure) -> None:
        failure = failure_of(answer, spared=False)
        done(WorkFinished(work, failure=failure, units=() if failure else self.cores))


def _batch_line(batch: int) -> str:
    """The line of a batch that waits for others, or for memory."""
    return f"batch {batch}"


def _copies(model: str) -> str:
    """The line of a model's copies: they wait for nothing else that the worker does."""
    return f"weights of {model}"
