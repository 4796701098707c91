"""The gRPC front-end but for its way to the engine: frames out by ``tell``, in by ``act``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from interlace.core.errors import ServeError
from interlace.server.api_keys import ApiKeys
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
from interlace.server.grpc.epoll_loop import EpollLoop
from interlace.server.grpc.infer_decoder import InferDecoder
from interlace.server.grpc.infer_head import InferTemplates
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.pending_calls import PendingCalls
from interlace.server.grpc.service import GrpcService
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
        keys: ApiKeys | None = None,
    ) -> None:
        self._tell = tell
        self._arenas = arenas
        self._regions = Regions(allowed=True)  # only what is allowed is told of
        self._decoder = InferDecoder(arena, InferTemplates(tell), self._regions, limits)
        self._pending = PendingCalls(
            tell, self._decoder, arenas, self._regions, limits.max_in_flight
        )
        self._service = GrpcService(self._pending, self._decoder, keys)
        self.loop = EpollLoop(self._service, limits)
        self.look = self._service.look
        self._draining = False

    @property
    def unreported(self) -> bool:
        """Whether outputs have left that the engine does not know of."""
        return self._pending.unreported

    def act(self, frame: ToGrpc) -> None:
        """Do what a frame says."""
        if isinstance(frame, AnswerFrame):
            self._pending.answer(frame)
        elif isinstance(frame, RefusalFrame):
            self._pending.refuse(frame)
        elif isinstance(frame, GivenUpFrame):
            self._pending.give_up(frame)
        elif isinstance(frame, ToldFrame):
            self._pending.told(frame)
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
        if self._draining and self._pending.idle and not self.loop.connections:
            self._draining = False
            self._tell(DownFrame(""))
        self._pending.report()

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
