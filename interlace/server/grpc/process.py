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

from interlace.server.api_keys import ApiKeys
from interlace.server.door.frames import DownFrame, SetupFrame, UpFrame
from interlace.server.grpc.front import Front
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.link import Link
from interlace.shm.arena import Arena, ArenaMap


class GrpcProcess:
    """The front-end, and the link to the main process."""

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
        keys = ApiKeys(setup.api_key, setup.admin_key)
        self._front = Front(link.tell, arena, arenas, limits, keys)
        self._link_full = False

    def run(self, listener: socket.socket) -> None:
        """Serve until drained, or the main process is gone."""
        loop = self._front.loop
        loop.watch(self._sock.fileno(), self._from_main)
        loop.listen(listener)
        self._link.tell(UpFrame(listener.getsockname()[1]))
        loop.run(self._tell, self._waiting, self._front.look)

    def _from_main(self) -> None:
        frames = self._link.receive()
        if frames is None:
            self._front.loop.stop()
            return
        for frame in frames:
            self._front.act(frame)

    def _waiting(self) -> bool:
        return self._front.unreported or self._link.unsent

    def _tell(self) -> None:
        self._front.report()
        full = not self._link.flush()
        if full != self._link_full:
            self._link_full = full
            self._front.loop.want_write(self._sock.fileno(), full)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the port is busy, or the host is not ours; in words.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno or 0)
        raise OSError(f"cannot listen for gRPC on {host}:{port}: {reason}") from error
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
        link.tell(DownFrame(str(error)))
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
