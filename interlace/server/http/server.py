"""The KServe v2 HTTP server: routes, listening sockets, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from interlace.server.administration.api import AdminApi
from interlace.server.api_keys import ApiKeys
from interlace.server.http.admin_routes import AdminHandler, admin_routes, metrics_route
from interlace.server.http.connection import HttpConnection
from interlace.server.http.inference_handler import InferenceHandler
from interlace.server.http.limits import HttpLimits
from interlace.server.http.origins import Origins
from interlace.server.http.request_head import RequestHeadReader
from interlace.server.http.routes import Route, RouteKind, Router
from interlace.server.http.server_state import RequestHandler, ServerState
from interlace.server.http.timeouts import ConnectionTimeouts
from interlace.shm.arena import Arena

BACKLOG = 1024


class HttpServer:
    """One set of routes on any number of addresses. Lives on the running asyncio loop."""

    def __init__(
        self,
        routes: Sequence[Route],
        door: InferenceHandler | None = None,
        arena: Arena | None = None,
        limits: HttpLimits | None = None,
        keys: ApiKeys | None = None,
        origins: Origins | None = None,
        trims: bool = False,
    ) -> None:
        """``trims`` says that nobody locks the arena's pages: those not used go back."""
        self._limits = limits or HttpLimits()
        admin = AdminHandler(self._limits)
        handlers: dict[RouteKind, RequestHandler] = {RouteKind.ADMIN: admin, RouteKind.LOAD: admin}
        if door is not None:
            handlers |= {RouteKind.INFER: door, RouteKind.GENERATE: door}
        reader = RequestHeadReader(Router(routes), self._limits, keys, origins)
        self._service = ServerState(reader, handlers, door, arena, self._limits, trims)
        self._door = door
        self._watch = ConnectionTimeouts(self._limits)
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._service.connections)

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; port 0 picks one. Returns the port.

        Raises:
            OSError: the address cannot be had, with host and port in the text.
        """
        loop = self._service.loop
        try:
            listener = await loop.create_server(
                lambda: HttpConnection(self._service), host, port, backlog=BACKLOG
            )
        except OSError as error:
            text = f"cannot listen on {host} port {port}: {error.strerror or error}"
            raise OSError(error.errno, text) from error
        self._listeners.append(listener)
        if self._timer is None:
            self._sweep()
        bound: socket.socket = listener.sockets[0]
        return int(bound.getsockname()[1])

    def drain(self) -> None:
        """Say in every response from now on that its connection closes."""
        self._service.draining = True

    async def close(self, grace_s: float = 10.0) -> None:
        """Stop accepting, send every response that is owed, and close; cut off after ``grace_s``.

        Whoever closes stops the data plane first, so that no request is taken meanwhile.
        """
        service = self._service
        self.drain()
        for listener in self._listeners:
            listener.close()
        ends_s = service.loop.time() + grace_s
        while service.connections and service.loop.time() < ends_s:
            for connection in tuple(service.connections):
                connection.drain()
            await asyncio.sleep(0.01)
        for connection in tuple(service.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)
        if self._door is not None:
            self._door.close()
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        loop = self._service.loop
        self._watch.sweep(self._service.connections, loop.time())
        self._service.trim()
        self._timer = loop.call_later(self._limits.sweep_s, self._sweep)


def inference_routes() -> list[Route]:
    """Inference and generation, with and without a version."""
    routes = []
    for prefix in ("/v2/models/*", "/v2/models/*/versions/*"):
        routes += [
            Route(f"{prefix}/infer", RouteKind.INFER),
            Route(f"{prefix}/generate", RouteKind.GENERATE),
            Route(f"{prefix}/generate_stream", RouteKind.GENERATE, stream=True),
        ]
    return routes


def all_routes(admin: AdminApi, render_metrics: Callable[[], str]) -> list[Route]:
    """Everything that the main port answers."""
    return [*inference_routes(), *admin_routes(admin), metrics_route(render_metrics)]
