"""The KServe v2 HTTP server: routes, listening sockets, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final

from interlace.server.administration.methods import AdminAnswers
from interlace.server.api_keys import ApiKeys
from interlace.server.http.admin_handler import AdminHandler, admin_routes, metrics_route
from interlace.server.http.connection import HttpConnection, ServerState
from interlace.server.http.exchange import InferenceFront, RequestHandler
from interlace.server.http.openapi import with_description
from interlace.server.http.request_head import Origins, RequestHeadReader
from interlace.server.http.routes import Route, RouteTable
from interlace.server.http.timeouts import ConnectionTimeouts
from interlace.server.limits import HttpLimits, RouteKind
from interlace.server.listening import listening_sockets
from interlace.server.tls import HANDSHAKE_S, HANDSHAKES_A_TURN, FollowedContext, HandshakeLog

BACKLOG: Final = 1024


class HttpServer:
    """One set of routes, and their description, on any number of addresses.

    Lives on the running asyncio loop.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        inference: InferenceFront | None = None,
        limits: HttpLimits | None = None,
        keys: ApiKeys | None = None,
        origins: Origins | None = None,
        trims: bool = False,
    ) -> None:
        """``trims`` gives unused pages of the arena back to the system; no driver locks them."""
        self._limits = limits or HttpLimits()
        self._admin = admin = AdminHandler(self._limits)
        orders = RouteKind.ADMIN, RouteKind.LOAD, RouteKind.PLAN
        handlers: dict[RouteKind, RequestHandler] = dict.fromkeys(orders, admin)
        if inference is not None:
            handlers |= {RouteKind.INFER: inference, RouteKind.GENERATE: inference}
        table = RouteTable(with_description(routes))
        reader = RequestHeadReader(table, self._limits, keys, origins)
        self._state = ServerState(reader, handlers, inference, self._limits)
        self._inference = inference
        self._trims = trims
        self._timeouts = ConnectionTimeouts(self._limits)
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._state.connections)

    async def listen(self, host: str, port: int, tls: FollowedContext | None = None) -> int:
        """Accept connections, with ``tls`` no others; port 0 picks one. Returns the port.

        Raises:
            OSError: the address cannot be had, with host and port in the text.
        """
        sockets = listening_sockets("HTTP" if tls is None else "HTTPS", host, port, BACKLOG)
        bound: int = sockets[0].getsockname()[1]
        for sock in sockets:
            self._listeners.append(
                await self._state.loop.create_server(self._connection, sock=sock, backlog=BACKLOG)
                if tls is None
                else TlsListener(sock, tls, self._connection, self._state.crowded)
            )
        if self._timer is None:
            self._sweep()
        return bound

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._state)

    def drain(self) -> None:
        """Say in every response from now on that its connection closes."""
        self._state.draining = True

    async def close(self, grace_s: float = 10.0) -> None:
        """Stop accepting, send every response that is owed, and close; cut off after ``grace_s``.

        Whoever closes stops the data plane first, so that no request is taken meanwhile.
        """
        state = self._state
        self.drain()
        self._admin.end_streams()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        ends_s = state.loop.time() + grace_s
        while state.connections and state.loop.time() < ends_s:
            for connection in tuple(state.connections):
                connection.drain()
            await asyncio.sleep(0.01)
        for connection in tuple(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        if self._inference is not None:
            self._inference.close()
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        loop = self._state.loop
        self._timeouts.sweep(self._state.connections, loop.time())
        self._trim()
        self._timer = loop.call_later(self._limits.sweep_s, self._sweep)

    def _trim(self) -> None:
        if self._trims and self._inference is not None:
            self._inference.arena.trim_unused()


_PLAIN: Final = "with plain JSON values"


def inference_routes() -> list[Route]:
    """Inference and generation, with and without a version."""
    routes = []
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            Route(f"{prefix}/infer", RouteKind.INFER, title="Infer"),
            Route(f"{prefix}/generate", RouteKind.GENERATE, title=f"Infer, {_PLAIN}"),
            Route(
                f"{prefix}/generate_stream",
                RouteKind.GENERATE,
                stream=True,
                title=f"Infer, {_PLAIN} and an event for the answer",
            ),
        ]
    return routes


def all_routes(admin: AdminAnswers, render_metrics: Callable[[], str]) -> list[Route]:
    """Everything that the main port answers."""
    return [*inference_routes(), *admin_routes(admin), metrics_route(render_metrics)]


#: How long none is accepted where descriptors or memory are short.
_SHORT_S: Final = 1.0


class TlsListener:
    """Accepts connections that begin with a TLS handshake, each within a bound of time and number.

    Until its handshake has ended a connection is not the server's: it is kept here.

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
