"""Main loop of a worker process: one per partition, frames of work in, answers out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock, get_ident
from time import sleep
from typing import Final

from msgspec.structs import replace

from interlace.device.cpu.execution import BatchInputs, execute
from interlace.device.cpu.inbox import Inbox
from interlace.device.cpu.model_calls import BatchCalls, Leadership, WorkerCalls
from interlace.device.cpu.request_execution import (
    TURN_S,
    Iteration,
    ResponseStreams,
    execute_requests,
)
from interlace.device.cpu.resident import OpenModel, ResidentModel
from interlace.device.process.error_text import batch_failure, error_text
from interlace.device.process.sandbox import confine
from interlace.device.process.wire import (
    BatchResult,
    CallAnswered,
    Copied,
    CopyWeights,
    Evicted,
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
    Ready,
    RunBatch,
    StopCopying,
    ToWorker,
    Unloaded,
    UnloadModel,
    Waits,
    WorkerAnswer,
    WorkerSetup,
    decode_to_worker,
)
from interlace.formats import shared_architecture
from interlace.formats.machine import keep_free_memory
from interlace.formats.python_backend.metrics import Metric, take_changes
from interlace.formats.python_backend.runner import PythonRunner
from interlace.formats.runner import ComingWeights, TakesTurns
from interlace.shm.arena import Arena, ArenaMap
from interlace.shm.frame_socket import BlockingFrameSocket

_PR_SET_NAME: Final = 15
_OOM_SCORE: Final = "500"  # when memory runs out, a worker goes before the server
_BACKGROUND_NICE: Final = 10
_CHANGES: Final = 200  #: of metrics, in a frame


def work(sock: socket.socket, name: str) -> None:
    """Serve frames until the main process closes its end. The first frame is ``WorkerSetup``."""
    frames: BlockingFrameSocket[FromWorker, ToWorker] = BlockingFrameSocket(sock, decode_to_worker)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        setup = frames.receive()
        if not isinstance(setup, WorkerSetup):
            return
        try:
            _prepare_process(setup, name)
            worker = CpuWorker(frames, setup)
            if setup.models_dir:
                files = filter(None, (setup.files_dir,))
                weights = filter(None, (setup.weights_dir,))
                confine(Path(setup.models_dir), weights, readable=files)
                here = str(Path.cwd())
                sys.path[:] = [folder or here for folder in sys.path]
                os.chdir(tempfile.gettempdir())  # the one folder in which models may write
        except Exception as error:
            frames.send(Failed(error_text("the worker could not start", error)))
            return
        frames.send(Ready())
        worker.serve()


def _prepare_process(setup: WorkerSetup, name: str) -> None:
    os.sched_setaffinity(0, setup.cores)
    if setup.background:
        os.nice(_BACKGROUND_NICE)
    if setup.quiet:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
    # A batch process never pre-empts the front end when it wakes up; the front end does.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)


class CpuWorker:
    """Carries out one frame at a time, in order."""

    def __init__(
        self, frames: BlockingFrameSocket[FromWorker, ToWorker], setup: WorkerSetup
    ) -> None:
        self._frames = frames
        self._setup = setup
        self._models: dict[str, ResidentModel] = {}
        self._modules: dict[str, TakesTurns] = {}  #: by architecture, the last that came of it
        arena = Arena.adopt(setup.owner_pid, setup.arena)
        arenas = ArenaMap(setup.owner_pid)
        arenas.add(arena)
        self._arenas = arenas
        self._inbox = Inbox(frames, arena, setup.patience_s)
        self._blocks = self._inbox.blocks
        self._intake = BatchInputs(arenas, self._blocks)
        self._open: OpenModel = resolve_name(setup.opener)
        self._leadership = Leadership(self._lead)
        self._calls = WorkerCalls(self._blocks, arenas, frames.send, self._leadership)
        self._behind: dict[str, deque[RunBatch]] = {}  #: by model that runs
        #: Models that run batches again and again: the most rows, and batches that join them.
        self._iterating: dict[str, tuple[int, deque[RunBatch]]] = {}
        self._joining = Lock()
        self._memory = memoryview(b"")
        if setup.weights_arena:
            weights = Arena.adopt(setup.owner_pid, setup.weights_arena)
            weights.touch()
            self._memory = weights.memory

    def serve(self) -> None:
        """Answer frames until the other end is closed."""
        self._leadership.run()
        self._let_go()

    def _lead(self) -> None:
        """Carry out frames until another thread does: the batch of this one waited for calls."""
        send = self._frames.send
        while self._leadership.leads:
            frame = self._inbox.next()
            if frame is None:
                self._calls.abandon()
                self._leadership.end()
                return
            if isinstance(frame, CallAnswered):
                self._calls.answered(frame)
                continue
            if isinstance(frame, RunBatch) and self._join(frame):
                continue
            with self._calls.next_turn():
                answer = self._run(frame) if isinstance(frame, RunBatch) else self._carry_out(frame)
                self._send_metrics()
                if answer is not None:
                    send(answer)

    def _send_metrics(self) -> None:
        """What the models' code counted meanwhile."""
        changes = take_changes() if Metric.changed else []
        for at in range(0, len(changes), _CHANGES):
            self._frames.send(MetricsChanged(tuple(changes[at : at + _CHANGES])))

    def _let_go(self) -> None:
        """Close what is loaded: the code of a model may have an end of its own."""
        for resident in self._models.values():
            with contextlib.suppress(Exception):
                resident.runner.close()

    def _carry_out(self, frame: ToWorker) -> WorkerAnswer | None:
        match frame:
            case GiveArena(arena=number):
                self._arenas.give(number, self._frames.descriptors.popleft())
                return None
            case ForgetArena(arena=number):
                self._arenas.forget(number)
                return None
            case LoadModel():
                return self._load(frame)
            case UnloadModel(model=key):
                resident = self._models.pop(key, None)
                if resident is not None:
                    self._close(resident)
                    del resident
                    self._blocks.trim()
                return Unloaded(key)
            case PlaceWeights(model=key):
                if (cold := self._cold(key)) is not None:
                    cold.place(_places(frame), self._memory)
                return None
            case CopyWeights(model=key):
                return self._copy(frame, self._cold(key))
            case StopCopying(model=key):
                if (cold := self._cold(key)) is not None:
                    cold.cancel()
                return None
            case EvictWeights(model=key, layers=layers):
                if (cold := self._cold(key)) is not None:
                    cold.leave([layer - 1 for layer in layers])
                return Evicted(key)
            case _:
                return Failed(f"a {type(frame).__name__} frame is not expected here")

    def _load(self, frame: LoadModel) -> WorkerAnswer:
        model = frame.model
        if model.key in self._models:
            return Failed(f"model {model.key} is already loaded here", batch=frame.number)
        threads, calls = len(self._setup.cores), BatchCalls(self._calls, frame.number)
        try:
            turns = self._taking_turns(frame)
            resident = turns or ResidentModel.load(
                frame, threads, self._setup.weights_dir, self._open, calls.begin
            )
        except BaseException as error:
            text = error_text(f"model {model.name} does not load", error)
            return Failed(text, batch=frame.number)
        finally:
            calls.end()
        self._models[model.key] = resident
        if resident.takes_requests is not None:
            keep_free_memory()
            resident.takes_requests.watch(partial(self._tell_readiness, model.key))
        runner, cold = resident.runner, resident.runner.cold
        architecture = runner.architecture if isinstance(runner, TakesTurns) else ""
        if frame.cold and architecture and isinstance(runner, TakesTurns):
            self._modules[architecture] = runner
        comes = cold if frame.cold else None
        return Loaded(
            model.key,
            runner.signature,
            resident.resident_bytes,
            (0, *comes.nbytes) if comes is not None else (),
            architecture,
            str(comes.file.path) if comes is not None else "",
            turns is None,
            comes.file.tables if comes is not None else (),
            frame.number,
        )

    def _tell_readiness(self, model: str, ready: bool) -> None:
        with contextlib.suppress(OSError):  # the main process is gone
            self._frames.send(ReadinessChanged(model, ready))

    def _taking_turns(self, frame: LoadModel) -> ResidentModel | None:
        """The model by a module that is open, if one of its architecture is."""
        model, folder = frame.model, self._setup.weights_dir
        known = model.signature.inputs and model.signature.outputs
        if not (frame.cold and known and folder and self._modules):
            return None
        first = self._modules.get(shared_architecture(model, folder))
        if first is None:
            return None
        try:
            return ResidentModel.taking_turns(frame, folder, first)
        except (OSError, ValueError):  # its weights are damaged: whoever opens it mends them
            return None

    def _close(self, resident: ResidentModel) -> None:
        """Let go of a model; of its module, too, unless others take turns with it."""
        runner = resident.runner
        if isinstance(runner, TakesTurns) and self._modules.get(runner.architecture) is runner:
            shared = runner.architecture
            del self._modules[shared]
            for one in (other.runner for other in self._models.values()):
                if isinstance(one, TakesTurns) and one.architecture == shared:
                    self._modules[shared] = one
                    break
        resident.close()

    def _cold(self, key: str) -> ComingWeights | None:
        resident = self._models.get(key)
        return None if resident is None else resident.runner.cold

    def _copy(self, frame: CopyWeights, cold: ComingWeights | None) -> Copied | None:
        """Copy beside the batches that follow; another thread answers."""
        if cold is None:
            return Copied(frame.model, f"model {frame.model} is not loaded here")

        def done(failure: str) -> None:
            with contextlib.suppress(OSError):  # the main process is gone
                self._frames.send(Copied(frame.model, failure))

        cold.fetch(_places(frame), self._memory, done)
        return None

    def _run(self, run: RunBatch) -> WorkerAnswer | Waits | None:
        resident = self._models.get(run.model)
        if resident is None:
            self._inbox.ended(run)
            return Failed(f"model {run.model} is not loaded here")
        if resident.takes_requests is not None:
            return self._run_in_turn(run, resident, resident.takes_requests)
        try:
            result = execute(run, resident, self._intake, self._blocks)
        except BaseException as error:
            return batch_failure(run, error, resident.model.format, resident.runs)
        resident.answered = True
        return result

    def _run_in_turn(
        self, run: RunBatch, resident: ResidentModel, runner: PythonRunner
    ) -> WorkerAnswer | Waits | None:
        """Run a batch, and those of its model that come while it waits for calls."""
        if self._join(run):
            return None
        if (behind := self._behind.get(run.model)) is not None:
            behind.append(run)
            return Waits(run.batch)
        if runner.joins and not runner.stacked:
            self._iterate(run, resident, runner)
            return None
        behind = self._behind[run.model] = deque()
        answer = self._run_requests(run, resident, runner)
        while behind:
            self._frames.send(answer)
            answer = self._run_requests(behind.popleft(), resident, runner)
        del self._behind[run.model]
        return answer

    def _join(self, run: RunBatch) -> bool:
        """Have a batch join those of its model that are executed again and again, if any are."""
        with self._joining:
            if (iterating := self._iterating.get(run.model)) is None:
                return False
            joins, behind = iterating
            self._frames.send(Waits(run.batch, joins))
            behind.append(run)
            return True

    def _iterate(self, run: RunBatch, resident: ResidentModel, runner: PythonRunner) -> None:
        """Execute a batch until its requests are done, with those that join it meanwhile."""
        behind, running = deque([run]), list[Iteration]()
        with self._joining:
            self._iterating[run.model] = runner.joins, behind
        while True:
            with self._joining:
                joining = [behind.popleft() for _ in range(len(behind))]
                if not (joining or running):
                    del self._iterating[run.model]
                    return
            for one in joining:
                try:
                    running.append(self._begin(one, resident, runner))
                except BaseException as error:
                    self._end_iteration(one, resident, error)
            if running:
                self._go_on(running, runner)
            for ended in [one for one in running if one.open.over]:
                running.remove(ended)
                try:
                    self._end_iteration(ended.run, resident, ended.result())
                except BaseException as error:
                    self._end_iteration(ended.run, resident, error)

    def _begin(self, run: RunBatch, resident: ResidentModel, runner: PythonRunner) -> Iteration:
        calls, batched = BatchCalls(self._calls, run.batch), resident.signature.batched
        streams = ResponseStreams(run.batch, self._inbox, self._frames.send, calls)
        return Iteration(run, runner, batched, self._intake, self._inbox, streams, calls)

    def _go_on(self, running: Sequence[Iteration], runner: PythonRunner) -> None:
        """Execute once; others that wait for their turn run before, but for the first time."""
        oldest = running[0]
        if oldest.executed:
            self._calls.leave(Waits(oldest.run.batch, runner.joins))
            self._leadership.leave(get_ident())
            if self._calls.next:
                with oldest.calls.turn_given_up():
                    sleep(TURN_S)
        for one in running:
            one.executed = True
        if runner.left:
            runner.iterate()
        else:  # its code responds from other threads
            oldest.open.wait(oldest.look)

    def _end_iteration(
        self, run: RunBatch, resident: ResidentModel, answer: BatchResult | BaseException
    ) -> None:
        """Answer a batch."""
        self._inbox.ended(run)
        if isinstance(answer, BatchResult):
            resident.answered = True
            self._frames.send(answer)
            return
        failed = batch_failure(run, answer, resident.model.format, resident.runs)
        self._frames.send(replace(failed, batch=run.batch))

    def _run_requests(
        self, run: RunBatch, resident: ResidentModel, runner: PythonRunner
    ) -> BatchResult | Failed:
        calls, batched = BatchCalls(self._calls, run.batch), resident.signature.batched
        streams = ResponseStreams(run.batch, self._inbox, self._frames.send, calls)
        try:
            result = execute_requests(
                run, runner, batched, self._intake, self._inbox, streams, calls
            )
        except BaseException as error:
            failed = batch_failure(run, error, resident.model.format, resident.runs)
            return replace(failed, batch=run.batch)
        finally:
            self._inbox.ended(run)
        resident.answered = True
        return result


def _places(frame: PlaceWeights | CopyWeights) -> dict[int, int]:
    """Offsets by use: the first layer is what runs before any weights are read."""
    uses = (layer - 1 for layer in frame.layers)
    return dict(zip(uses, frame.offsets, strict=True))
