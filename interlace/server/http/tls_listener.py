"""Accepts connections that begin with a TLS handshake, each within a bound of time and number."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from interlace.server.tls import HANDSHAKE_S, HANDSHAKES_A_TURN, FollowedContext, HandshakeLog

#: How long none is accepted where descriptors or memory are short.
_SHORT_S: Final = 1.0


class TlsListener:
    """Connections that have not shown themselves yet are not the server's: they are kept here.

    Where they are too many, the handshake that began first gives way.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: FollowedContext,
        make: Callable[[], asyncio.BaseProtocol],
        crowded: Callable[[int], bool],
    ) -> None:
        """``crowded`` hears how many handshakes are under way."""
        self.sock = sock
        self._tls, self._make, self._crowded = tls, make, crowded
        self._loop = asyncio.get_running_loop()
        self._log = HandshakeLog("HTTP")
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self.sock.fileno())
        self.sock.close()
        for handshake in self._under_way:
            handshake.cancel()

    def _listen(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.add_reader(self.sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(HANDSHAKES_A_TURN):
            try:
                sock, peer = self.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self.sock.fileno())
                self._loop.call_later(_SHORT_S, self._listen)
                return
            if self._under_way and self._crowded(len(self._under_way)):
                first = next(iter(self._under_way))
                del self._under_way[first]
                first.cancel()
            sock.setblocking(False)
            task = self._loop.create_task(self._shake_hands(sock, peer))
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _shake_hands(self, sock: socket.socket, peer: tuple[object, ...]) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._loop.connect_accepted_socket(
                    self._make, sock, ssl=self._tls.now(), ssl_shutdown_timeout=HANDSHAKE_S
                )
        except OSError as error:  # of TLS, of the connection, or of time
            self._log.failed(peer, error)
