"""gRPC as the main process sees it: started, drained, and started again if it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from interlace.core.tensor import BYTES, Span, Tensor
from interlace.server.dataplane.call import InferenceCall
from interlace.server.dataplane.classification import classified
from interlace.server.door.frames import ArenaGoneFrame, RegionsFrame
from interlace.server.door.inside import Inside
from interlace.server.door.life import DoorSettings, Life
from interlace.server.door.session import Office, Plane
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.shm.arena import ArenaMap

_PAUSES_S: Final = (0.05, 0.2, 1.0, 5.0)


class Door:
    """The gRPC front-end. A dead gRPC process costs its calls, and is replaced on the same port."""

    def __init__(
        self,
        plane: Plane,
        office: Office,
        table: ModelTable,
        regions: Regions,
        arenas: ArenaMap,
        settings: DoorSettings,
        on_trouble: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``on_trouble`` gets a line for the operator when the process dies or will not start."""
        self.port = 0
        self.restarts = 0
        self._plane = plane
        self._office = office
        self._table = table
        self._regions = regions
        self._arenas = arenas
        self._settings = settings
        self._on_trouble = on_trouble
        self._life: Life | Inside | None = None
        self._repair: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Of the gRPC process; ``None`` while there is none, and where it needs none."""
        return None if self._life is None else self._life.pid

    async def start(self) -> int:
        """Start serving and return the port.

        Raises:
            OSError: the port is busy, or the process cannot start.
        """
        self._life = await self._begin(self._settings.port)
        self._regions.watchers.append(self._tell_regions)
        self._arenas.watchers.append(self._tell_arena_gone)
        return self.port

    async def drain(self, timeout_s: float) -> None:
        """Refuse new calls; return when all is answered and read, or time is up."""
        self._closing = True
        if self._life is not None:
            await self._life.drain(timeout_s)

    async def close(self) -> None:
        """Stop serving; what is unanswered is cancelled."""
        self._closing = True
        if self._tell_regions in self._regions.watchers:
            self._regions.watchers.remove(self._tell_regions)
        if self._tell_arena_gone in self._arenas.watchers:
            self._arenas.watchers.remove(self._tell_arena_gone)
        if self._repair is not None:
            self._repair.cancel()
            with suppress(asyncio.CancelledError):
                await self._repair
        life, self._life = self._life, None
        if life is not None:
            await life.end()

    async def _begin(self, port: int) -> Life | Inside:
        life = self._make()
        try:
            self.port = await life.start(port)
            if not life.alive:
                raise OSError("the gRPC process died as soon as it was up")
        except BaseException:
            await life.end()
            raise
        life.send(self._regions_frame())
        return life

    def _make(self) -> Life | Inside:
        parts = self._plane, self._office, self._ranked, self._arenas, self._settings
        return Inside(*parts) if self._settings.inside else Life(*parts, self._gone)

    def _gone(self) -> None:
        if self._life is None or self._closing:
            return  # it never came up, or was told to go
        dead, self._life = self._life, None
        self._on_trouble(f"the gRPC process {dead.pid} died; starting another")
        self._repair = asyncio.get_running_loop().create_task(self._replace(dead))

    async def _replace(self, dead: Life | Inside) -> None:
        await dead.end()
        for attempt in count():
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            try:
                self._life = await self._begin(self.port)
            except OSError as error:
                self._on_trouble(f"gRPC cannot start again: {error}")
                continue
            self.restarts += 1
            return

    def _tell_regions(self) -> None:
        if self._life is not None:
            self._life.send(self._regions_frame())

    def _tell_arena_gone(self, number: int) -> None:
        if self._life is not None:
            self._life.send(ArenaGoneFrame(number))

    def _regions_frame(self) -> RegionsFrame:
        regions = self._regions.status()
        return RegionsFrame(tuple((r.name, r.key, r.offset, r.byte_size) for r in regions))

    def _ranked(
        self, call: InferenceCall, outputs: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], dict[int, bytes]]:
        """Outputs of which some are wanted as classes, and the bytes of those."""
        model = self._table.resolve(call.model, call.version).model
        shown, inline = list(outputs), {}
        for position, wanted in enumerate(call.outputs):
            if not wanted.classes:
                continue
            tensor = outputs[position]
            view = self._arenas.view(tensor.span)
            shape, inline[position] = classified(model, tensor, view, wanted.classes)
            shown[position] = Tensor(tensor.name, BYTES, shape, Span(tensor.span.arena, 0, 0))
        return tuple(shown), inline
