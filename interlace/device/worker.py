"""Main loop of a worker process: one per partition, frames of work in, answers out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import time
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.device.blocks import Blocks
from interlace.device.execution import execute
from interlace.device.intake import Intake
from interlace.device.resident import OpenModel, Resident
from interlace.device.wire import (
    Answer,
    Failed,
    ForgetArena,
    FreeBatches,
    FromWorker,
    Loaded,
    LoadModel,
    Ready,
    RunBatch,
    Setup,
    Starved,
    ToWorker,
    Unloaded,
    UnloadModel,
    decode_to_worker,
)
from interlace.shm.arena import Arena, ArenaMap
from interlace.shm.frames import BlockingFrames

_PR_SET_NAME: Final = 15
_OOM_SCORE: Final = "500"  # when memory runs out, a worker goes before the server
_BACKGROUND_NICE: Final = 10
_DETAIL_CHARS: Final = 2000


def work(sock: socket.socket, name: str) -> None:
    """Serve frames until the main process closes its end. The first frame is ``Setup``."""
    frames: BlockingFrames[FromWorker, ToWorker] = BlockingFrames(sock, decode_to_worker)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        setup = frames.receive()
        if not isinstance(setup, Setup):
            return
        try:
            _settle(setup, name)
            worker = Worker(frames, setup)
        except Exception as error:
            frames.send(Failed(_words("the worker could not start", error)))
            return
        frames.send(Ready())
        worker.serve()


def _settle(setup: Setup, name: str) -> None:
    os.sched_setaffinity(0, setup.cores)
    if setup.background:
        os.nice(_BACKGROUND_NICE)
    # A batch process never pre-empts the front end when it wakes up; the front end does.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15].encode(), 0, 0, 0)


class Worker:
    """Carries out one frame at a time, in order."""

    def __init__(self, frames: BlockingFrames[FromWorker, ToWorker], setup: Setup) -> None:
        self._frames = frames
        self._setup = setup
        self._backlog: deque[ToWorker] = deque()
        self._models: dict[str, Resident] = {}
        arena = Arena.adopt(setup.owner_pid, setup.arena)
        arenas = ArenaMap(setup.owner_pid)
        arenas.add(arena)
        self._arenas = arenas
        self._blocks = Blocks(arena, self._wait_for_memory)
        self._intake = Intake(arenas, self._blocks)
        self._open: OpenModel = _named(setup.opener)

    def serve(self) -> None:
        """Answer frames until the other end is closed."""
        backlog, receive, send = self._backlog, self._frames.receive, self._frames.send
        while True:
            frame = backlog.popleft() if backlog else receive()
            if frame is None:
                return
            answer = self._run(frame) if isinstance(frame, RunBatch) else self._carry_out(frame)
            if answer is not None:
                send(answer)

    def _carry_out(self, frame: ToWorker) -> Answer | None:
        match frame:
            case FreeBatches(batches=batches):
                self._blocks.free(batches)
                return None
            case ForgetArena(arena=number):
                self._arenas.forget(number)
                return None
            case LoadModel():
                return self._load(frame)
            case UnloadModel(model=key):
                resident = self._models.pop(key, None)
                if resident is not None:
                    resident.close()
                    del resident
                    self._blocks.arena.trim()
                return Unloaded(key)
            case _:
                return Failed(f"a {type(frame).__name__} frame is not expected here")

    def _load(self, frame: LoadModel) -> Answer:
        model = frame.model
        if model.key in self._models:
            return Failed(f"model {model.key} is already loaded here")
        threads = len(self._setup.cores)
        try:
            resident = Resident.load(frame, threads, self._setup.weights_dir, self._open)
        except (Exception, SystemExit) as error:
            return Failed(_words(f"model {model.name} does not load", error))
        self._models[model.key] = resident
        return Loaded(
            model.key,
            resident.runner.signature,
            resident.runner.resident_bytes,
            resident.resident_bytes,
        )

    def _run(self, run: RunBatch) -> Answer:
        self._blocks.free(run.freed)
        resident = self._models.get(run.model)
        if resident is None:
            return Failed(f"model {run.model} is not loaded here")
        try:
            return execute(run, resident, self._intake, self._blocks)
        except (Exception, SystemExit) as error:
            return Failed(_words(f"model {run.model} failed on batch {run.batch}", error))

    def _wait_for_memory(self) -> bool:
        self._frames.send(Starved())
        until = time.monotonic() + self._setup.patience_s
        while (left := until - time.monotonic()) > 0:
            try:
                frame = self._frames.receive_within(left)
            except TimeoutError:
                return False
            if frame is None:
                raise ConnectionError("the main process closed its end")
            if isinstance(frame, FreeBatches):
                self._blocks.free(frame.batches)
                return True
            self._backlog.append(frame)
        return False


def _words(what: str, error: BaseException) -> str:
    if isinstance(error, RepositoryError):
        return str(error)[:_DETAIL_CHARS]  # it names the file, and reads by itself
    return f"{what}: {type(error).__name__}: {error}"[:_DETAIL_CHARS]


def _named(path: str) -> OpenModel:
    module, _, name = path.partition(":")
    opener: OpenModel = getattr(import_module(module), name)
    return opener
