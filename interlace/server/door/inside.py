"""gRPC in the main process itself, for machines where all share one core."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from interlace.server.door.frames import DownFrame, DrainFrame, ToGrpc, ToMain
from interlace.server.door.life import DoorSettings
from interlace.server.door.session import Office, Plane, Ranked, Session
from interlace.server.grpc.epoll_loop import TICK_S
from interlace.server.grpc.front import Front
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.process import listen
from interlace.shm.arena import Arena, ArenaMap


class Inside:
    """As ``Life``, without a process: connections are read on this event loop.

    A process of its own brings gRPC a core of its own. On one core it only adds two hops, each with
    a change of process that waits for the others' turns, to every call that does not come in a
    crowd: at 4,800 identity calls a second they filled the core that serves 9,700 in a closed loop.
    """

    pid = None  #: there is no process

    def __init__(
        self,
        plane: Plane,
        office: Office,
        ranked: Ranked,
        arenas: ArenaMap,
        settings: DoorSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        arena = Arena.create(settings.arena_bytes)
        arenas.add(arena)
        self._told: list[ToMain] = []
        self._out: list[ToGrpc] = []
        self._session = Session(plane, office, ranked, arena, self.send, arenas.forget)
        limits = GrpcLimits(
            max_message_bytes=settings.max_message_bytes,
            max_in_flight=settings.max_in_flight,
            max_connections=settings.max_connections,
        )
        self._front = Front(self._told.append, arena, arenas, limits, settings.keys)
        self._drained: asyncio.Future[None] = self._loop.create_future()
        self._next_look: asyncio.TimerHandle | None = None
        self._again = False  # a turn is asked for that no descriptor asks for
        self._open = True

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return not self._drained.done()

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    async def start(self, port: int) -> int:
        """Listen, and return the port.

        Raises:
            OSError: it cannot listen, with the address and the reason.
        """
        listener = listen(self._settings.host, port)
        self._front.loop.listen(listener)
        self._loop.add_reader(self._front.loop.fileno(), self._turn)
        self._next_look = self._loop.call_later(TICK_S, self._look)
        found: int = listener.getsockname()[1]
        return found

    def send(self, frame: ToGrpc) -> None:
        """Act on a frame, together with what else this turn of the loop sends."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    async def drain(self, timeout_s: float) -> None:
        """Take no new calls; return when the last is answered and read, or time is up."""
        self.send(DrainFrame())
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._drained), timeout_s)

    async def end(self) -> None:
        """Close every connection; what is unanswered is cancelled. Twice is once."""
        if not self._open:
            return
        self._open = False
        if self._next_look is not None:
            self._next_look.cancel()
            self._loop.remove_reader(self._front.loop.fileno())
        self._front.close()
        self._session.lost()
        if not self._drained.done():
            self._drained.set_result(None)

    def _turn(self) -> None:
        self._again = False
        if not self._open:
            return
        self._front.loop.read(0.0)
        self._tell()
        self._write()
        if self._front.loop.unfinished and not self._again:
            self._again = True
            self._loop.call_soon(self._turn)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self._open:
            return
        for frame in out:
            self._front.act(frame)
        self._write()

    def _write(self) -> None:
        self._front.loop.write()
        self._tell()  # what has left

    def _tell(self) -> None:
        self._front.report()
        told = self._told[:]
        self._told.clear()
        for frame in told:
            if not isinstance(frame, DownFrame):
                self._session.act(frame)
            elif not self._drained.done():
                self._drained.set_result(None)

    def _look(self) -> None:
        self._next_look = self._loop.call_later(TICK_S, self._look)
        self._front.look()
        self._front.loop.look()
        self._write()
