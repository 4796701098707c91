"""The composition root: the only place that knows every concrete class of a live server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from interlace import __version__
from interlace.cli.accelerators import Accelerators
from interlace.control.deaths import Deaths
from interlace.control.deployments import Deployments
from interlace.control.figures import Figures
from interlace.control.lifecycle import Lifecycle
from interlace.control.news import News
from interlace.control.preparation import Preparation
from interlace.control.registry import Registry
from interlace.control.standing import Standing
from interlace.control.startup import Startup
from interlace.control.workers import WorkerWatch
from interlace.core.hardware import Fleet
from interlace.device.cpu import CpuDevice
from interlace.engine.engine import Engine
from interlace.measure.rig import Rig
from interlace.measure.store import ProfileStore
from interlace.policy.base import System
from interlace.runtime.clock import WallClock
from interlace.runtime.log import Header, LogWriter
from interlace.runtime.runtime import Runtime
from interlace.runtime.scaling import NoScaling
from interlace.runtime.solver import ExecutorSolver
from interlace.server.admin import Admin
from interlace.server.corewait import CoreWait
from interlace.server.dataplane import DataPlane
from interlace.server.door.admin import AdminDoor
from interlace.server.door.door import Door
from interlace.server.door.life import DoorSettings
from interlace.server.executions import Executions
from interlace.server.http.admin import health_routes, metrics_route
from interlace.server.http.door import InferDoor
from interlace.server.http.limits import HttpLimits
from interlace.server.http.origin import Origins, loopback
from interlace.server.http.server import HttpServer, all_routes
from interlace.server.keys import Keys
from interlace.server.metrics import Metrics
from interlace.server.shared_memory import Regions
from interlace.server.table import ModelTable
from interlace.shm.arena import Arena, ArenaMap

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the operator chose."""

    root: Path
    accelerators: Accelerators
    system: System
    profiles: Path
    host: str
    grpc_port: int
    keys: Keys
    allow_client_shm: bool
    allow_hosts: tuple[str, ...] = ()
    log: Path | None = None
    log_bytes: int = 1 << 30
    arena_bytes: int = 2 << 30
    http: HttpLimits = field(default_factory=HttpLimits)


class Assembly:
    """A live server, its parts wired; nothing listens and nothing is loaded yet."""

    def __init__(self, choices: Choices, say: Say) -> None:
        loop = asyncio.get_running_loop()
        self.arena = Arena.create(choices.arena_bytes)
        self.arenas = ArenaMap(os.getpid())
        self.arenas.add(self.arena)
        inputs = (self.arena.number,)
        self.devices = choices.accelerators.make(loop, self.arenas, inputs, say)
        self.clock = WallClock(loop)
        self.fleet = Fleet(choices.accelerators.gpus)
        self.engine = Engine(self.fleet, choices.system)
        self._planner = ThreadPoolExecutor(1, "planner")
        solver = ExecutorSolver(choices.system, self.clock, self._planner)
        self.table = ModelTable()
        self._log = self._log_of(choices, say)
        self.runtime = Runtime(
            self.engine,
            self.clock,
            {device.gpu.id: device for device in self.devices.all},
            solver,
            [Executions(self.table), Deaths(say), *([self._log] if self._log else [])],
            scaling=NoScaling(say),
        )
        self.devices.on_away(self.runtime.away, self.runtime.back)
        self._core_wait = CoreWait(loop)
        self.plane = DataPlane(self.runtime, self.table, self.arenas, waited_ms=self._core_wait.ms)
        self.registry = Registry()
        standing = Standing(self.registry, self.table, say)
        self.news = News(standing.set_aside, standing.back)
        self.runtime.on_tell = self.news.tell
        self._watching: list[asyncio.Future[None]] = []
        self._control(choices, say)
        self._transports(choices, say)

    def _log_of(self, choices: Choices, say: Say) -> LogWriter | None:
        if choices.log is None:
            return None
        started = datetime.now().astimezone().isoformat(timespec="milliseconds")
        header = Header(__version__, choices.system.name, self.fleet, started=started)
        return LogWriter(choices.log, header, self.engine, choices.log_bytes, say)

    def _control(self, choices: Choices, say: Say) -> None:
        store = ProfileStore(choices.profiles, say)
        rig = Rig(self.devices.all[0], self.clock, self.arena)
        preparation = Preparation(choices.root, self.devices, rig, store)
        deployments = Deployments(
            self.runtime, self.devices, self.table, self.news, self.engine.state
        )
        self.lifecycle = Lifecycle(preparation, deployments, self.devices, self.registry)
        self.startup = Startup(
            preparation, deployments, self.devices, self.registry, self.lifecycle.alone, say
        )

    def _transports(self, choices: Choices, say: Say) -> None:
        regions = Regions(choices.allow_client_shm)
        self.figures = Figures(
            self.engine.state,
            self.arena,
            self.registry,
            lambda: self.plane.in_flight,
            lambda: self.connections,
        )
        admin = Admin(
            self.plane,
            self.table,
            self.lifecycle,
            self.clock,
            regions,
            self.figures.resident_bytes,
        )
        metrics = Metrics(self.table, self.figures.snapshot)
        infer = InferDoor(self.plane, self.table, self.arena, self.arenas, regions, choices.http)
        routes = all_routes(admin, metrics.render)
        keys, origins = choices.keys, _origins(choices)
        # A GPU's driver locks the pages of requests, and would go on reading those given back.
        trims = not choices.accelerators.settings
        self.http = HttpServer(routes, infer, self.arena, choices.http, keys, origins, trims)
        pages = [metrics_route(metrics.render), *health_routes(admin)]
        self.metrics = HttpServer(pages, keys=keys, origins=origins)
        self.door = Door(
            self.plane,
            AdminDoor(admin),
            self.table,
            regions,
            self.arenas,
            DoorSettings(
                choices.host,
                choices.grpc_port,
                choices.keys,
                inside=len(os.sched_getaffinity(0)) == 1,
            ),
            say,
        )

    def watch(self, say: Say) -> None:
        """Begin to look after workers on cores, once a second."""
        self._watching = [
            asyncio.ensure_future(WorkerWatch(device, self.engine.state, self.registry, say).run())
            for device in self.devices.all
            if isinstance(device, CpuDevice)
        ]

    @property
    def connections(self) -> int:
        """HTTP connections open now."""
        return self.http.connections

    async def close(self) -> None:
        """Give everything back."""
        self.startup.close()
        for task in self._watching:
            task.cancel()
        await self.door.close()
        self.devices.close()
        self._core_wait.close()
        if self._log is not None:
            self._log.close()
        self._planner.shutdown(wait=False, cancel_futures=True)
        self.arenas.close()
        self.arena.close()


def _origins(choices: Choices) -> Origins:
    """The names that requests may call this server by: any, where it listens to others too."""
    if not loopback(choices.host) and not choices.allow_hosts:
        return Origins()
    names = ("localhost", choices.host, *choices.allow_hosts)
    return Origins(frozenset(name.lower() for name in names))
