"""One gRPC process: the child, its arena, and the frames to and from it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from interlace.core.errors import Reason
from interlace.server.api_keys import ApiKeys
from interlace.server.door.frames import (
    AnswerFrame,
    DownFrame,
    DrainFrame,
    RefusalFrame,
    SetupFrame,
    ToGrpc,
    ToMain,
    UpFrame,
)
from interlace.server.door.session import Office, Plane, Ranked, Session
from interlace.shm.arena import Arena, ArenaMap
from interlace.shm.frame_socket import AsyncFrameSocket, frame_pair

_QUEUED_BYTES_MAX: Final = 64 << 20
_START_S: Final = 30.0
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Where and how gRPC is served; port 0 is any free one.

    ``inside`` serves it in the main process, which is better where all share one core.
    """

    host: str = "127.0.0.1"
    port: int = 8001
    keys: ApiKeys = field(default_factory=ApiKeys)
    arena_bytes: int = 1 << 30
    max_message_bytes: int = 2**31 - 1
    max_in_flight: int = 8192
    max_connections: int = 1024
    inside: bool = False


class Life:
    """From the start of a gRPC process to its end. ``on_gone`` is called once if it dies."""

    def __init__(
        self,
        plane: Plane,
        office: Office,
        ranked: Ranked,
        arenas: ArenaMap,
        settings: DoorSettings,
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._on_gone = on_gone
        self._arena = Arena.create(settings.arena_bytes)
        arenas.add(self._arena)
        self._session = Session(plane, office, ranked, self._arena, self.send, arenas.forget)
        self._frames: AsyncFrameSocket[Sequence[ToGrpc], list[ToMain]] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._out: list[ToGrpc] = []
        self._up: asyncio.Future[int] = self._loop.create_future()
        self._drained: asyncio.Future[None] = self._loop.create_future()

    @property
    def pid(self) -> int | None:
        """Of the process, once it runs."""
        return None if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        """Whether its socket is open."""
        return not self._drained.done()

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    async def start(self, port: int) -> int:
        """Start the process and return the port it listens on, once it does.

        Raises:
            OSError: it cannot listen, with the address and the reason.
        """
        ours, theirs = frame_pair()
        try:
            os.set_inheritable(theirs.fileno(), True)
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "interlace.server.grpc.process",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            self._lost()
            raise
        finally:
            theirs.close()
        self._listen_to(ours)
        settings = self._settings
        self.send(
            SetupFrame(
                os.getpid(),
                self._arena.number,
                settings.host,
                port,
                settings.keys.api,
                settings.keys.admin,
                settings.max_message_bytes,
                settings.max_in_flight,
                settings.max_connections,
            )
        )
        return await asyncio.wait_for(self._up, _START_S)

    def send(self, frame: ToGrpc) -> None:
        """Send a frame, together with what else this turn of the loop sends."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    async def drain(self, timeout_s: float) -> None:
        """Take no new calls; return when the last is answered and read, or time is up."""
        self.send(DrainFrame())
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._drained), timeout_s)

    async def end(self) -> None:
        """Close the socket, at which the process exits; kill it if it does not."""
        if self._frames is not None:
            self._frames.close()
        self._lost()
        if self._child is None:
            return
        try:
            await asyncio.wait_for(self._child.wait(), _END_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()

    def _listen_to(self, sock: socket.socket) -> None:
        decode = msgspec.msgpack.Decoder(list[ToMain]).decode
        self._frames = AsyncFrameSocket(
            self._loop, sock, decode, self._act, self._closed, _QUEUED_BYTES_MAX
        )

    def _act(self, frames: list[ToMain]) -> None:
        for frame in frames:
            if isinstance(frame, UpFrame):
                self._up.set_result(frame.port)
            elif not isinstance(frame, DownFrame):
                self._session.act(frame)
            elif frame.detail and not self._up.done():
                self._up.set_exception(OSError(frame.detail))
            elif not self._drained.done():
                self._drained.set_result(None)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._put(out)

    def _put(self, out: list[ToGrpc]) -> None:
        if self._frames is None:
            return
        try:
            self._frames.send(out)
        except BufferError:
            if self._child is not None:  # it does not read: another will
                with suppress(ProcessLookupError):
                    self._child.kill()
        except ValueError:
            if len(out) > 1:
                self._put(out[: len(out) // 2])
                self._put(out[len(out) // 2 :])
            elif isinstance(out[0], AnswerFrame):
                text = "the outputs have too many names and dimensions for one answer"
                self._session.unsent(out[0].call)
                self._put([RefusalFrame(out[0].call, Reason.TOO_LARGE.value, text, None)])
            else:
                raise

    def _closed(self) -> None:
        if not self._up.done():
            self._up.set_exception(OSError("the gRPC process ended before it could listen"))
        self._lost()
        self._on_gone()

    def _lost(self) -> None:
        self._session.lost()
        if not self._drained.done():
            self._drained.set_result(None)
