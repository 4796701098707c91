"""A router, from taking its port to the last answer."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from interlace.core.node import NodeState
from interlace.fleet.membership import Membership
from interlace.router.api import RouterApi
from interlace.router.directory import NodeDirectory
from interlace.router.grpc.forwarding import CallForwarder
from interlace.router.http.forwarding import Forwarder
from interlace.router.http.reads import NodeReader
from interlace.router.polling import NodePoller, OnHeard
from interlace.routing.routes import Routes, RoutingLimits, by_pace
from interlace.runtime.clock import WallClock
from interlace.runtime.event_loop import raise_descriptor_limit, run_loop, settle_memory
from interlace.server.api_keys import ApiKeys, shown_key
from interlace.server.grpc.server import GrpcServer
from interlace.server.http.request_head import loopback
from interlace.server.http.routes import Route
from interlace.server.http.server import HttpServer, all_routes
from interlace.server.limits import GrpcLimits, HeapBudget, HttpLimits
from interlace.server.spans import RouterSpans, span_exporter
from interlace.server.tls import CLEAR_KEYS, GRPC, HTTP, NO_TLS, TlsFiles
from interlace.shm.arena import Arena

#: Hears the ports of HTTP and gRPC.
OnReady = Callable[[int, int], None]
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What the operator chose. ``keys`` are asked of callers, ``api`` is shown to nodes.

    Callers speak TLS if ``tls`` has a certificate, and nodes if it has an authority. Spans are sent
    to the collector at the URL ``otlp``, if there is one.
    """

    nodes: Membership
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    keys: ApiKeys = field(default_factory=ApiKeys)
    arena_bytes: int = 1 << 30
    exit_timeout_s: float = 30.0
    tls: TlsFiles = NO_TLS
    otlp: str = ""


class Router:
    """A router on the running asyncio loop, its parts wired."""

    def __init__(self, settings: RouterSettings, pages: Sequence[Route] = ()) -> None:
        """``pages`` are answered beside, or instead of, what a router answers.

        Raises:
            InputError: ``otlp`` is no URL.
            ModuleNotFoundError: the extra ``otel`` is not installed.
        """
        otlp = settings.otlp  # checked before anything is taken
        self._spans = RouterSpans(span_exporter(otlp, "interlace-router")) if otlp else None
        loop = asyncio.get_running_loop()
        http = HttpLimits(connections=8192)
        budget = HeapBudget(http.heap_bytes)
        beliefs = Routes(RoutingLimits(), by_pace(Random().choices))
        self._settings = settings
        self.port = settings.http_port  #: where HTTP is spoken
        self._arena = Arena.create(settings.arena_bytes)
        self.directory = NodeDirectory(
            beliefs,
            WallClock(loop),
            budget,
            shown_key(settings.keys.api),
            settings.tls,
            self._spans,
        )
        reader = NodeReader(self.directory, shown_key(settings.keys.api))
        self.on_heard: OnHeard = lambda node, state: None
        self._poller = NodePoller(self.directory, reader, self._heard)
        self._api = RouterApi(self.directory, reader)
        forwarder = Forwarder(self.directory, self._arena, budget)
        routes = [*pages, *all_routes(self._api, self.directory.metrics)]
        self.http = HttpServer(routes, forwarder, http, settings.keys, trims=True)
        calls = CallForwarder(self.directory, GrpcLimits())
        self.grpc = GrpcServer(calls, self._api, settings.keys)
        self._following = asyncio.ensure_future(self._follow(settings.nodes))

    async def _follow(self, membership: Membership) -> None:
        """Send requests to the nodes that there are and to no others."""
        async for nodes in membership.watch():
            _LOG.info("nodes: %s", ", ".join(node.name for node in nodes) or "none")
            self.directory.follow(nodes)
            self._poller.follow()

    async def listen(self) -> tuple[int, int]:
        """Accept connections. Returns the ports of HTTP and gRPC.

        Raises:
            OSError: an address cannot be had.
        """
        asked, tls = self._settings, self._settings.tls
        keys = asked.keys.admin or asked.keys.node
        if tls.cert is None and keys and not loopback(asked.host):
            _LOG.warning(CLEAR_KEYS, asked.host)
        self.port = http = await self.http.listen(asked.host, asked.http_port, tls.listener(HTTP))
        return http, await self.grpc.listen(asked.host, asked.grpc_port, tls.listener(GRPC))

    async def close(self) -> None:
        """Answer what was accepted, then give everything back."""
        self._api.accepting = False
        grace_s = self._settings.exit_timeout_s
        await asyncio.gather(self.http.close(grace_s), self.grpc.drain(grace_s))
        self.grpc.close()
        self._following.cancel()
        self._poller.close()
        self._arena.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    def _heard(self, node: str, state: NodeState) -> None:
        self.directory.heard(node, state)
        self.on_heard(node, state)


def run_router(settings: RouterSettings, on_ready: OnReady) -> None:
    """Route in this thread, the main one, until SIGTERM or SIGINT; ``on_ready`` hears the ports.

    Raises:
        OSError: the address cannot be had.
    """
    run_loop(routed(lambda: Router(settings), on_ready))


async def routed(make: Callable[[], Router], on_ready: OnReady) -> None:
    """Route on this loop until SIGTERM or SIGINT.

    Raises:
        OSError: the address cannot be had.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    raise_descriptor_limit()
    router = make()
    try:
        ports = await router.listen()
        settle_memory()
        on_ready(*ports)
        await stop.wait()
        _LOG.info("stopping: what was accepted is answered first")
    finally:
        await router.close()
