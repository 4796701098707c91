"""The gRPC server: its own HTTP/2 over the data plane, in the main process, as HTTP is.

Why not grpcio: it costs more CPU a call, on one quiet core with 32 calls of 64-byte tensors in
flight. An echo behind grpcio's Python servers costs 85-98 us with a pool of threads, where each
call that waits holds one, and 135 us with asyncio. With 602 KB they cost 1.6-2.0 ms. This server
costs 27 us, and 0.27 ms with 602 KB. It receives tensors straight into shared memory, and parses
what repeats once. ``bench.front`` measures it.

Why not a process of its own: it took 35 us a call (27 in that process, 8 in the main process) and
0.30 ms with 602 KB, and every call made two more hops. The main process had less work, but the
other process used cores that models use.
"""

from __future__ import annotations

import asyncio
from typing import Final

from interlace.server.administration.methods import AdminAnswers
from interlace.server.api_keys import ApiKeys
from interlace.server.grpc.epoll_loop import EpollLoop
from interlace.server.grpc.infer_calls import CallFront
from interlace.server.grpc.service import GrpcService
from interlace.server.listening import listening_sockets
from interlace.server.tls import FollowedContext

BACKLOG: Final = 1024


class GrpcServer:
    """Serves gRPC on the running asyncio loop."""

    def __init__(
        self,
        inference: CallFront,
        api: AdminAnswers,
        keys: ApiKeys | None = None,
    ) -> None:
        self._service = GrpcService(inference, api, keys)
        self._loop = EpollLoop(self._service, inference.limits)

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self._loop.connections

    async def listen(self, host: str, port: int, tls: FollowedContext | None = None) -> int:
        """Accept connections, with ``tls`` no others; port 0 picks one. Returns the port.

        Raises:
            OSError: the address cannot be had, and why.
        """
        listeners = listening_sockets("gRPC", host, port, BACKLOG)
        for listener in listeners:
            self._loop.listen(listener, tls)
        bound: int = listeners[0].getsockname()[1]
        return bound

    async def drain(self, timeout_s: float) -> None:
        """Refuse new calls; return when all is answered and read, or time is up."""
        self._service.drain()
        self._loop.drain()
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while not self._service.idle or self._loop.connections:
            if asyncio.get_running_loop().time() >= ends_s:
                return
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Close every connection; what is unanswered is cancelled."""
        self._loop.close()
