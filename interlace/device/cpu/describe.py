"""What a model says of itself, read in another process: the server never imports torch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure
from interlace.core.model import Description, Format, Model
from interlace.core.request import Reply
from interlace.device.base import Callees
from interlace.device.cpu.outgoing_calls import ask_server
from interlace.device.cpu.partition import CpuWorkerLink
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.batch_frames import error_result
from interlace.device.process.link import FrameProtocol, PendingRequest, WorkerLink
from interlace.device.process.spawner import ForkServerSpawner
from interlace.device.process.wire import (
    CallAnswered,
    CallModel,
    Failed,
    FromWorker,
    Loaded,
    LoadModel,
    RequestResult,
    Unasked,
    UnloadModel,
    WorkerAnswer,
    decode_from_worker,
)
from interlace.shm.arena import Arena, ArenaMap

#: Models opened at once, at least: one whose import hangs must not hold up the others.
_AT_ONCE: Final = 4
_CLOSED: Final = "the device is closed"


class _Place:
    """One of the models that are opened at once. It leaves when its code waits for others."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Let another be opened."""
        if self._places is not None:
            self._places.release()
            self._places = None


class _Calls:
    """What a process that opens models says besides its answers."""

    hear: Callable[[CallModel], None]

    def line(self, frame: FromWorker) -> tuple[str, WorkerAnswer] | None:
        """As ``FrameProtocol.answer``."""
        if isinstance(frame, CallModel):
            self.hear(frame)
        return None if isinstance(frame, Unasked) else ("", frame)


class _Opener(NamedTuple):
    """A process that opens models."""

    link: CpuWorkerLink
    arena: Arena
    calls: _Calls

    def close(self) -> None:
        self.link.close("no longer needed")
        self.arena.close()


class Describer:
    """Opens models in processes of their own, in the background of all that serve.

    Models that run the same code when they are opened share a process, one after the other: what a
    library does for the first of them takes longer than the rest. One that does not open there is
    tried in a process that opened none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arenas: ArenaMap,
        spawner: ForkServerSpawner,
        settings: CpuSettings,
    ) -> None:
        self._loop = loop
        self._arenas = arenas
        self._spawner = spawner
        self._settings = settings
        self._at_once = asyncio.Semaphore(max(_AT_ONCE, len(settings.cores)))
        self._links: set[CpuWorkerLink] = set()
        self._wanted: Counter[Hashable] = Counter()  #: models to be opened, by the code they run
        self._free: dict[Hashable, list[_Opener]] = {}
        self._closed = False
        self._callees: Callees | None = None

    def serve_code(self, callees: Callees) -> None:
        """Let the code of models load others while they are opened."""
        self._callees = callees

    async def describe(self, model: Model, limit_s: float = 120.0) -> Description:
        """What a model says of itself, read by loading it in another process.

        Raises:
            ServeError: it does not load, or not within ``limit_s``; in the words of its format.
        """
        self._spawner.preload(self._settings.preload.get(model.format, ()))
        code = await asyncio.to_thread(_code_of, model)
        self._wanted[code] += 1
        place = _Place(self._at_once)
        try:
            await self._at_once.acquire()
            return _description(await self._answer(model, code, limit_s, place))
        finally:
            place.leave()
            self._wanted[code] -= 1
            if not self._wanted[code]:
                del self._wanted[code]
                for opener in self._free.pop(code, ()):
                    self._end(opener)

    def close(self) -> None:
        """Fail what is under way, and what has not begun."""
        self._closed = True
        for link in list(self._links):
            link.close(_CLOSED)

    async def _answer(
        self, model: Model, code: Hashable, limit_s: float, place: _Place
    ) -> WorkerAnswer | Failure:
        if free := self._free.get(code):
            answer = await self._opened(model, code, limit_s, place, free.pop())
            if isinstance(answer, Loaded):
                return answer
        answer = await self._opened(model, code, limit_s, place)
        if isinstance(answer, Failure) and answer.innocent:  # killed from outside: once is chance
            answer = await self._opened(model, code, limit_s, place)
        return answer

    async def _opened(
        self,
        model: Model,
        code: Hashable,
        limit_s: float,
        place: _Place,
        opener: _Opener | None = None,
    ) -> WorkerAnswer | Failure:
        answered: asyncio.Future[WorkerAnswer | Failure] = self._loop.create_future()

        def settle(answer: WorkerAnswer | Failure) -> None:
            if not answered.done():
                answered.set_result(answer)

        def started(answer: WorkerAnswer | Failure) -> None:
            if isinstance(answer, Failure | Failed):
                settle(answer)

        question = PendingRequest[WorkerAnswer](started, limit_s, "start")
        opener = opener or self._begin(question, self._spawner.within(model.environment))
        link, used = opener.link, False
        opener.calls.hear = partial(self._ask_server, opener, model.key, limit_s / 2.0, place)
        try:
            link.ask(LoadModel(model, ()), PendingRequest(settle, limit_s, f"load {model.key}"))
            answer = await answered
            used = isinstance(answer, Loaded) and self._wanted[code] > 1
            if used:
                unload = PendingRequest[WorkerAnswer](
                    lambda _: None, limit_s, f"unload {model.key}"
                )
                link.ask(UnloadModel(model.key), unload)
                self._free.setdefault(code, []).append(opener)
            return answer
        finally:
            if not used:
                self._end(opener)

    def _begin(self, question: PendingRequest[WorkerAnswer], spawner: ForkServerSpawner) -> _Opener:
        if self._closed:
            raise ServeError(Reason.BACKEND, _CLOSED)
        arena, calls = Arena.create(self._settings.arena_bytes), _Calls()
        setup = self._settings.setup("describe", self._settings.cores, arena, background=True)
        protocol = FrameProtocol(decode_from_worker, calls.line)
        link: CpuWorkerLink = WorkerLink(self._loop, setup.name, protocol, lambda cause: None)
        self._links.add(link)
        opener = _Opener(link, arena, calls)
        try:
            link.start(spawner.spawn, setup, question)
        except OSError:
            self._end(opener)
            raise
        return opener

    def _ask_server(
        self, opener: _Opener, caller: str, limit_s: float, place: _Place, asked: CallModel
    ) -> None:
        """Submit what the code of a model asks the server; others may be opened meanwhile."""
        place.leave()
        if asked.inputs:
            self._arenas.add(opener.arena)

        def answered(answer: Reply | ServeError | None) -> None:
            result = error_result(answer) if isinstance(answer, ServeError) else RequestResult(())
            opener.link.tell(CallAnswered(asked.call, result))

        ask_server(self._callees, asked, caller, limit_s, answered)

    def _end(self, opener: _Opener) -> None:
        self._arenas.forget(opener.arena.number)
        opener.close()
        self._links.discard(opener.link)


def _code_of(model: Model) -> Hashable:
    """What is run to open a model, beside the library of its format.

    Code of several files is its alone: what it imports could be found in another's folder.
    """
    if model.format is Format.PYTHON:
        return model.key
    if model.format is not Format.FACTORY:
        return model.format
    files = list(Path(model.path).rglob("*.py"))
    return files[0].read_bytes() if len(files) == 1 else model.key


def _description(answer: WorkerAnswer | Failure) -> Description:
    if isinstance(answer, Loaded):
        return Description(answer.signature, answer.architecture)
    raise ServeError(Reason.BACKEND, getattr(answer, "detail", "the model did not load"))
