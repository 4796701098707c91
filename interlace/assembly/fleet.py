"""A fleet's controller and its first router, in one process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGTERM
from typing import Final

import msgspec

from interlace.assembly.page import fleet_page
from interlace.assembly.router import OnReady, Router, RouterSettings, routed
from interlace.core.node import Assignment, Node, NodeDescription
from interlace.core.user_errors import InputError, UserError
from interlace.fleet.controller import Controller
from interlace.fleet.kinds import NO_PRICES, KindPrices
from interlace.fleet.lease import FileLease, LatestLease, Lease
from interlace.fleet.machine_pool import MachineScaler, MachineScaling
from interlace.fleet.membership import ChangingNodes, KeptNodeChanges
from interlace.fleet.model_files import FleetFiles
from interlace.fleet.node_client import NodeOrders
from interlace.fleet.node_keeper import LocalNodes
from interlace.fleet.orders import fleet_routes
from interlace.fleet.ray_nodes import RayNodes
from interlace.fleet.service import FleetService
from interlace.policy.base import System
from interlace.repository.folder import folder_names
from interlace.router.http.reads import NodeReader
from interlace.runtime.clock import WallClock
from interlace.runtime.event_loop import run_loop
from interlace.runtime.plan_solver import ProcessPlanSolver, WarmProcess, unsendable
from interlace.server.api_keys import shown_key

#: Plans that are made at a time: what would be done elsewise keeps no node's loss waiting.
_QUESTIONS: Final = 4


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What the operator chose. ``models`` is the folder of all that is to be served.

    Nodes are shown ``router.keys.order`` with orders. Controllers that share the folder ``lease``
    take turns; without, the one that began last commands.
    ``prices`` say where work costs least.
    """

    router: RouterSettings
    models: Path
    system: System
    lease: Path | None = None
    prices: KindPrices = NO_PRICES


def run_fleet(settings: FleetSettings, on_ready: OnReady) -> None:
    """Command and route in this thread, the main one, until SIGTERM or SIGINT.

    Raises:
        InputError: the system cannot plan here, or there is no key for nodes.
        RepositoryError: the folder of models cannot be listed.
        OSError: an address, or the lease's folder, cannot be had.
        UserError: a task of the controller failed.
    """
    if reason := unsendable(settings.system):
        raise InputError(f"system {settings.system.name}: {reason}")

    if not settings.router.keys.order:
        raise InputError("nodes take orders from whoever has their key: --node-key-file")
    folder_names(settings.models)

    async def run() -> None:
        with ThreadPoolExecutor(_QUESTIONS, "planner") as planner:
            fleet = _FleetParts(settings, planner)
            try:
                await routed(fleet.router, on_ready)
            finally:
                fleet.close()
                planner.shutdown(wait=False, cancel_futures=True)
            if fleet.broken:
                raise UserError("this controller is broken, and has ended: its log says of what")

    run_loop(run())


class _FleetParts:
    """The parts, wired on the running loop."""

    def __init__(self, settings: FleetSettings, planner: ThreadPoolExecutor) -> None:
        self._settings = settings
        self._clock = WallClock(asyncio.get_running_loop())
        self._solver_executor = planner
        self._warm = WarmProcess(settings.system)
        self._service: FleetService | None = None
        self._scaling: asyncio.Future[None] | None = None
        self.broken = False

    def router(self) -> Router:
        """The router; its service commands from then on."""
        asked = self._settings
        files = FleetFiles(asked.models)
        changes = KeptNodeChanges(asked.lease)
        nodes = ChangingNodes(asked.router.nodes, changes)
        orders_to = fleet_routes(self._commanding, nodes, self._end)
        page = fleet_page(lambda: msgspec.json.encode(self._commanding().status()))
        pages = [*page, *orders_to, *files.routes()]
        router = Router(replace(asked.router, nodes=nodes), pages)
        keys, scheme = asked.router.keys, "https://" if asked.router.tls.cert else ""
        orders = NodeReader(router.directory, keys.order, secret=True)
        reads = NodeReader(router.directory, shown_key(keys.api))

        def source(name: str) -> str:
            node = next(one for one in router.directory.nodes if one.name == name)
            return f"{scheme}{_seen_from(node, asked.router.host)}:{router.port}"

        service = FleetService(
            router.directory,
            reads,
            NodeOrders(orders),
            files,
            source,
            self._controller,
            self._lease(),
            changes,
        )
        service.on_term = nodes.read
        service.on_broken = self._break
        router.on_heard = service.heard
        service.start()
        self._service = service
        pool = asked.router.nodes
        if isinstance(pool, RayNodes) and pool.most_machines:
            scaler = MachineScaler(service, pool, MachineScaling(pool.most_machines))
            self._scaling = asyncio.ensure_future(scaler.run())
        return router

    def _break(self) -> None:
        """End as SIGTERM does: who watches this process starts another."""
        self.broken = True
        os.kill(os.getpid(), SIGTERM)

    def _commanding(self) -> FleetService:
        assert self._service is not None
        return self._service

    def close(self) -> None:
        """Command no more."""
        if self._scaling is not None:
            self._scaling.cancel()
        if self._service is not None:
            self._service.close()
        self._warm.close()

    def _lease(self) -> Lease:
        folder = self._settings.lease
        if folder is None:
            return LatestLease()
        holder = f"{socket.gethostname()} (process {os.getpid()})"
        return FileLease(folder, holder, self._clock.now_ms)

    def _controller(
        self,
        term: int,
        nodes: Mapping[str, NodeDescription],
        standing: Mapping[str, Assignment],
    ) -> Controller:
        def solver(system: System) -> ProcessPlanSolver:
            return ProcessPlanSolver(system, self._clock, self._solver_executor, self._warm)

        asked = self._settings
        return Controller(
            self._clock, asked.system, solver, term, nodes, standing=standing, prices=asked.prices
        )

    async def _end(self) -> str:
        """As SIGTERM does, once the answer has been sent; nodes that we have started end before."""
        pool, done = self._settings.router.nodes, "all nodes serve nothing now, and wait to be told"
        if isinstance(pool, LocalNodes):
            done = "all nodes serve nothing now, and end with this fleet"
        elif isinstance(pool, RayNodes):
            await asyncio.to_thread(pool.end)
            done = "all nodes have ended"
        self._clock.call_at(self._clock.now_ms() + 200.0, lambda: os.kill(os.getpid(), SIGTERM))
        return done


def _seen_from(node: Node, host: str) -> str:
    """This machine's address for a node, where we listen at ``host``."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    with socket.socket(
        socket.AF_INET6 if ":" in node.host else socket.AF_INET, socket.SOCK_DGRAM
    ) as probe:
        probe.connect((node.host, node.http_port))  # nothing is sent
        return str(probe.getsockname()[0])
