"""A router in a thread of its own, over whatever nodes a test gives it."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from interlace.core.node import ModelOutlook, Node, NodeState
from interlace.router.api import RouterApi
from interlace.router.directory import NodeDirectory
from interlace.router.grpc.forwarding import CallForwarder
from interlace.router.http.forwarding import Forwarder
from interlace.router.http.reads import NodeReader
from interlace.routing.routes import Routes, RoutingLimits, by_pace
from interlace.runtime.clock import WallClock
from interlace.server.grpc.server import GrpcServer
from interlace.server.http.server import HttpServer, all_routes
from interlace.server.limits import GrpcLimits, HeapBudget, HttpLimits
from interlace.server.tls import NO_TLS, TlsFiles
from tests.router.scripted_node import ScriptedNode
from tests.server.fakes import Memory
from tests.server.stand import LoopThread


class RouterParts:
    """Everything of one router. Made on its loop."""

    def __init__(self, routing: RoutingLimits, tls: TlsFiles) -> None:
        self.memory = Memory()
        limits = HttpLimits()
        budget = HeapBudget(limits.heap_bytes)
        clock = WallClock(asyncio.get_running_loop())
        self.directory = NodeDirectory(
            Routes(routing, by_pace(Random(1).choices)), clock, budget, tls=tls
        )
        api = RouterApi(self.directory, NodeReader(self.directory, ""))
        self.forwarder = Forwarder(self.directory, self.memory.arena, budget)
        self.calls = CallForwarder(self.directory, GrpcLimits())
        self.grpc = GrpcServer(self.calls, api)
        self.http = HttpServer(all_routes(api, lambda: "# nothing\n"), self.forwarder, limits)


class RouterStand(LoopThread):
    """Runs a router until closed; what nodes say of themselves is up to the test."""

    parts: RouterParts

    def __init__(
        self,
        ports: Mapping[str, int],
        grpc: Mapping[str, int] | None = None,
        lost_ms: float = 60_000.0,
        limits: RoutingLimits | None = None,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        """Nodes by name, at these ports of this machine; lost when they are silent for so long."""
        super().__init__()
        routing = limits or RoutingLimits(lost_ms / 5, lost_ms)
        self.parts = self.do(lambda: RouterParts(routing, tls))
        other = grpc or {}
        nodes = [Node(n, "127.0.0.1", port, other.get(n, 0)) for n, port in ports.items()]
        self.do(lambda: self.parts.directory.follow(nodes))
        self.port = self.wait(self.parts.http.listen("127.0.0.1", 0))
        self.grpc_port: int = self.wait(self.parts.grpc.listen("127.0.0.1", 0))
        self._number = 0

    def heard(
        self,
        node: str,
        *models: str,
        wait_ms: float = 5.0,
        slo_ms: float = 5000.0,
        stateful: bool = False,
    ) -> None:
        """A node says that it answers these models within that time."""
        self._number += 1
        outlook = ModelOutlook(wait_ms, wait_ms, 0.0, slo_ms, stateful=stateful)
        state = NodeState(1, self._number, dict.fromkeys(models, outlook))
        self.do(lambda: self.parts.directory.heard(node, state))

    def close(self) -> None:
        self.do(self.parts.grpc.close)
        self.do(self.parts.directory.close)
        super().close()


#: Makes a router over nodes that act so, all of them with model "m".
Made = Callable[..., tuple[RouterStand, list[ScriptedNode]]]
