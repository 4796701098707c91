"""The gRPC process: its own HTTP/2, one thread, and a socket to the main process.

Why not grpcio: on one quiet core, with 32 calls of 64-byte tensors in flight, an echo in place
behind grpcio's Python servers costs 85-98 us of CPU a call (a pool of threads, one of which would
be held by each call that waits) or 135 us (asyncio), and 1.6-2.0 ms with 602 KB. This process
costs 30-40 us and 0.25-0.35 ms, the hop to the main process included, as it receives tensors
straight into shared memory and parses what repeats once. ``bench/grpc_front.py`` measures both.

The process exits when the main process closes its end of the socket. It never imports torch.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from interlace.core.errors import ServeError
from interlace.server.door.frames import (
    AnswerFrame,
    DownFrame,
    DrainFrame,
    RefusalFrame,
    RegionsFrame,
    SetupFrame,
    ToGrpc,
    ToldFrame,
    UpFrame,
)
from interlace.server.grpc.desk import Desk
from interlace.server.grpc.forms import Forms
from interlace.server.grpc.intake import Intake
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.link import Link
from interlace.server.grpc.loop import Loop
from interlace.server.grpc.service import InferenceService
from interlace.server.keys import Keys
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap


class GrpcProcess:
    """All parts of the process, put together as the main process said."""

    def __init__(self, sock: socket.socket, link: Link, setup: SetupFrame) -> None:
        limits = GrpcLimits(
            max_message_bytes=setup.max_message_bytes,
            max_in_flight=setup.max_in_flight,
            max_connections=setup.max_connections,
        )
        arena = Arena.adopt(setup.owner_pid, setup.arena)
        arenas = ArenaMap(setup.owner_pid)
        arenas.add(arena)
        self._sock = sock
        self._link = link
        self._regions = Regions(allowed=True)  # the main process lets in only what is allowed
        self._intake = Intake(arena, Forms(link.tell), self._regions, limits)
        self._desk = Desk(link, self._intake, arenas, self._regions, limits.max_in_flight)
        self._service = InferenceService(
            self._desk, self._intake, Keys(setup.api_key, setup.admin_key)
        )
        self._loop = Loop(self._service, limits)
        self._draining = False
        self._link_full = False

    def run(self, listener: socket.socket) -> None:
        """Serve until drained, or the main process is gone."""
        self._loop.watch(self._sock.fileno(), self._from_main)
        self._loop.listen(listener)
        self._link.tell(UpFrame(listener.getsockname()[1]))
        self._loop.run(self._tell, self._waiting, self._service.look)

    def _from_main(self) -> None:
        frames = self._link.receive()
        if frames is None:
            self._loop.stop()
            return
        for frame in frames:
            self._act(frame)

    def _act(self, frame: ToGrpc) -> None:
        if isinstance(frame, AnswerFrame):
            self._desk.answer(frame)
        elif isinstance(frame, RefusalFrame):
            self._desk.refuse(frame)
        elif isinstance(frame, ToldFrame):
            self._desk.told(frame)
        elif isinstance(frame, RegionsFrame):
            self._set_regions(frame)
        elif isinstance(frame, DrainFrame):
            self._draining = True
            self._service.drain()
            self._loop.drain()

    def _waiting(self) -> bool:
        return self._desk.unreported or self._link.unsent

    def _tell(self) -> None:
        if self._draining and self._desk.idle and not self._loop.connections:
            self._draining = False
            self._link.tell(DownFrame(""))
        self._desk.report()
        full = not self._link.flush()
        if full != self._link_full:
            self._link_full = full
            self._loop.want_write(self._sock.fileno(), full)

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


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the port is busy, or the host is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def main(fd: int) -> None:
    """Serve gRPC for the main process at the other end of the socket ``fd``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process says when
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    link = Link(sock)
    setup = _setup(sock, link)
    if setup is None:
        return
    try:
        listener = listen(setup.host, setup.port)
    except OSError as error:
        reason = (
            f"cannot listen for gRPC on {setup.host}:{setup.port}: {os.strerror(error.errno or 0)}"
        )
        link.tell(DownFrame(reason))
        link.flush()
        return
    process = GrpcProcess(sock, link, setup)
    _raise_descriptor_limit()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    process.run(listener)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _setup(sock: socket.socket, link: Link) -> SetupFrame | None:
    sock.setblocking(True)
    frames = link.receive()
    sock.setblocking(False)
    first = frames[0] if frames else None
    return first if isinstance(first, SetupFrame) else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
