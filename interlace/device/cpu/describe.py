"""What a model says of itself, read in a process of its own: the server never imports torch."""

from __future__ import annotations

import asyncio
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure
from interlace.core.model import Description, Model
from interlace.device.cpu.partition import CpuWorkerLink
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.link import FrameProtocol, WorkerLink
from interlace.device.process.pending import PendingRequest
from interlace.device.process.spawner import ForkServerSpawner
from interlace.device.process.wire import (
    Failed,
    FromWorker,
    Loaded,
    LoadModel,
    Starved,
    WorkerAnswer,
    decode_from_worker,
)
from interlace.shm.arena import Arena

#: Models opened at once, at least: one whose import hangs must not hold up the others.
_AT_ONCE: Final = 4


class Describer:
    """Opens models one to a process, each in the background of all that serve."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, spawner: ForkServerSpawner, settings: CpuSettings
    ) -> None:
        self._loop = loop
        self._spawner = spawner
        self._settings = settings
        self._at_once = asyncio.Semaphore(max(_AT_ONCE, len(settings.cores)))
        self._links: set[CpuWorkerLink] = set()

    async def describe(self, model: Model, limit_s: float = 120.0) -> Description:
        """What a model says of itself, read by loading it in a process of its own.

        Raises:
            ServeError: it does not load, or not within ``limit_s``; in the words of its format.
        """
        self._spawner.preload(self._settings.preload.get(model.format, ()))
        async with self._at_once:
            arena = Arena.create(1 << 12)
            try:
                return _description(await self._answer(model, arena, limit_s))
            finally:
                arena.close()

    def close(self) -> None:
        """Fail what is under way."""
        for link in list(self._links):
            link.close("the device is closed")

    async def _answer(self, model: Model, arena: Arena, limit_s: float) -> WorkerAnswer | Failure:
        answered: asyncio.Future[WorkerAnswer | Failure] = self._loop.create_future()

        def settle(answer: WorkerAnswer | Failure) -> None:
            if not answered.done():
                answered.set_result(answer)

        def started(answer: WorkerAnswer | Failure) -> None:
            if isinstance(answer, Failure | Failed):
                settle(answer)

        setup = self._settings.setup("describe", self._settings.cores, arena, background=True)
        protocol = FrameProtocol(decode_from_worker, _line)
        link: CpuWorkerLink = WorkerLink(self._loop, setup.name, protocol, lambda cause: None)
        self._links.add(link)
        try:
            link.start(self._spawner, setup, PendingRequest(started, limit_s, "start"))
            link.ask(LoadModel(model, ()), PendingRequest(settle, limit_s, f"load {model.key}"))
            return await answered
        finally:
            link.close("no longer needed")
            self._links.discard(link)


def _description(answer: WorkerAnswer | Failure) -> Description:
    if isinstance(answer, Loaded):
        return Description(answer.signature, answer.architecture)
    raise ServeError(Reason.BACKEND, getattr(answer, "detail", "the model did not load"))


def _line(frame: FromWorker) -> tuple[str, WorkerAnswer] | None:
    return None if isinstance(frame, Starved) else ("", frame)
