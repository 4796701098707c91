"""The gRPC front-end but for its way to the engine: frames out by ``tell``, in by ``act``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from interlace.core.errors import ServeError
from interlace.server.door.frames import (
    AnswerFrame,
    ArenaGoneFrame,
    DownFrame,
    DrainFrame,
    GivenUpFrame,
    RefusalFrame,
    RegionsFrame,
    ToGrpc,
    ToldFrame,
    ToMain,
)
from interlace.server.grpc.desk import Desk
from interlace.server.grpc.forms import Forms
from interlace.server.grpc.intake import Intake
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.loop import Loop
from interlace.server.grpc.service import InferenceService
from interlace.server.keys import Keys
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap


class Front:
    """Connections and calls. Inputs land in ``arena``, outputs are read through ``arenas``."""

    def __init__(
        self,
        tell: Callable[[ToMain], None],
        arena: Arena,
        arenas: ArenaMap,
        limits: GrpcLimits,
        keys: Keys | None = None,
    ) -> None:
        self._tell = tell
        self._arenas = arenas
        self._regions = Regions(allowed=True)  # only what is allowed is told of
        self._intake = Intake(arena, Forms(tell), self._regions, limits)
        self._desk = Desk(tell, self._intake, arenas, self._regions, limits.max_in_flight)
        self._service = InferenceService(self._desk, self._intake, keys)
        self.loop = Loop(self._service, limits)
        self.look = self._service.look
        self._draining = False

    @property
    def unreported(self) -> bool:
        """Whether outputs have left that the engine does not know of."""
        return self._desk.unreported

    def act(self, frame: ToGrpc) -> None:
        """Do what a frame says."""
        if isinstance(frame, AnswerFrame):
            self._desk.answer(frame)
        elif isinstance(frame, RefusalFrame):
            self._desk.refuse(frame)
        elif isinstance(frame, GivenUpFrame):
            self._desk.give_up(frame)
        elif isinstance(frame, ToldFrame):
            self._desk.told(frame)
        elif isinstance(frame, RegionsFrame):
            self._set_regions(frame)
        elif isinstance(frame, ArenaGoneFrame):
            self._arenas.forget(frame.arena)
        elif isinstance(frame, DrainFrame):
            self._draining = True
            self._service.drain()
            self.loop.drain()

    def report(self) -> None:
        """Tell what has left since the last report, and when all is drained."""
        if self._draining and self._desk.idle and not self.loop.connections:
            self._draining = False
            self._tell(DownFrame(""))
        self._desk.report()

    def close(self) -> None:
        """Close every connection and region."""
        self.loop.close()
        self._regions.close()

    def _set_regions(self, frame: RegionsFrame) -> None:
        wanted = {region[0]: region for region in frame.regions}
        for region in self._regions.status():
            if wanted.get(region.name) != (
                region.name,
                region.key,
                region.offset,
                region.byte_size,
            ):
                self._regions.unregister(region.name)
        known = {region.name for region in self._regions.status()}
        for name in wanted.keys() - known:
            with suppress(ServeError):  # gone since: calls that name it will be told
                self._regions.register(*wanted[name])
