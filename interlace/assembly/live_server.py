"""The composition root: the only place that knows every concrete class of a live server."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from interlace.apps.parts import TensorMemory
from interlace.apps.sequences import SequenceRuntime
from interlace.assembly.accelerators import Accelerators
from interlace.assembly.machine import PUBLIC
from interlace.assembly.page import live_page
from interlace.assembly.profiling_run import ExtraProfiling
from interlace.assembly.simulated_accelerators import SimulatedAccelerators
from interlace.control.available_models import AvailableModels
from interlace.control.deployments import Deployments, StatusFutures
from interlace.control.ensembles import Ensembles
from interlace.control.fleet_node import Assignments, NodeStates
from interlace.control.lifecycle import ModelLifecycle
from interlace.control.model_files import ControllerCalls, WantedModels
from interlace.control.model_preparer import ModelPreparer
from interlace.control.refinement import ProfileRefinement
from interlace.control.registry import VersionRegistry
from interlace.control.repository_poll import RepositoryPoll
from interlace.control.snapshots import SnapshotSource
from interlace.control.startup import Startup
from interlace.control.uploads import Uploads
from interlace.control.workers import WorkerDeathObserver, WorkerMonitor
from interlace.core.errors import ServeError
from interlace.core.hardware import Fleet
from interlace.core.model import Model, TrustedModels
from interlace.core.node import Assignment, NodeDescription, Revision, check_node_name
from interlace.core.request import Reply
from interlace.core.tables import counted
from interlace.core.user_errors import InputError
from interlace.core.version import __version__
from interlace.device.cpu.device import CpuDevice
from interlace.engine.engine import Engine
from interlace.planning.follower import AssignedPlan
from interlace.policy.base import System
from interlace.profiling.extra_metrics import ExtraMetrics
from interlace.profiling.rig import Rig
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import OnSweepStep
from interlace.runtime.clock import WallClock
from interlace.runtime.log.codec import LogHeader
from interlace.runtime.log.write import LogWriter
from interlace.runtime.plan_solver import AssignedPlanSolver, ProcessPlanSolver
from interlace.runtime.runtime import Runtime
from interlace.server.administration.api import AdminApi
from interlace.server.administration.methods import HEALTH_METHODS
from interlace.server.administration.model_control import ModelControlCalls
from interlace.server.api_keys import ApiKeys
from interlace.server.body_decoder import BodyDecoder
from interlace.server.custom_metrics import CustomMetrics
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.model_calls import ModelCalls
from interlace.server.dataplane.plane import DataPlane, ExecutionCounter, RunDelay
from interlace.server.grpc.infer_calls import LocalInference
from interlace.server.grpc.server import GrpcServer
from interlace.server.http.admin_handler import admin_routes, metrics_route, node_routes
from interlace.server.http.inference_handler import InferenceHandler
from interlace.server.http.request_head import Origins, loopback
from interlace.server.http.routes import Route
from interlace.server.http.server import HttpServer, all_routes
from interlace.server.limits import GrpcLimits, HttpLimits
from interlace.server.loop_delay import LoopDelay
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.server.spans import RequestSpans, span_exporter
from interlace.server.statistics import Metrics
from interlace.server.tls import NO_TLS, TlsFiles
from interlace.shm.arena import RESERVE_BYTES, Arena, ArenaMap

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is rarely set: who may call, how much memory and log, how a server ends.

    Callers need ``api_key``, and ``admin_key`` where a call changes the server; an empty one is not
    asked for. Orders to a node need ``node_key``, else ``admin_key``. ``allow_hosts`` are further
    Host names to answer to; ``allow_client_shm`` lets clients pass shared memory.
    ``request_memory_mb`` bounds the bodies of requests. Every event is kept in ``log``, for
    `interlace replay`; it and the file before it hold ``log_limit_mb`` at most. A server that stops
    serves on for ``drain_delay_s``, not ready, then waits ``exit_timeout_s`` for accepted requests.
    One that is ``assigned`` loads nothing before an assignment (docs/fleet.md); it is the ``node``
    of that name (else host:port) in that ``zone``. With a certificate in ``tls`` its ports speak
    TLS alone; with an authority, too, callers of HTTP and gRPC need a certificate of it.
    ``trust_models`` names the models that may be code (SECURITY.md): "all", "none" or names with
    commas; else all of a folder or bucket, and none of a controller or of hf://. The server is
    ready without models that cannot be served only if ``allow_missing`` names them, or "all"; with
    ``exit_on_error`` it ends if another cannot. It looks for changes of the repository each
    ``poll_s``, or never. Spans go to the collector at the URL ``otlp`` (the extra ``otel``).
    """

    api_key: str = ""
    admin_key: str = ""
    allow_hosts: tuple[str, ...] = ()
    allow_client_shm: bool = False
    request_memory_mb: float = 2048.0
    log: Path | None = None
    log_limit_mb: float = 1000.0
    drain_delay_s: float = 0.0
    exit_timeout_s: float = 30.0
    assigned: bool = False
    node: str = ""
    zone: str = ""
    node_key: str = ""
    tls: TlsFiles = NO_TLS
    trust_models: str = ""
    allow_missing: tuple[str, ...] = ()
    exit_on_error: bool = False
    poll_s: float = 0.0
    otlp: str = ""

    def __post_init__(self) -> None:
        if self.assigned and not (self.node_key or self.admin_key or self.api_key):
            raise InputError(
                "--assigned: whoever reaches this port could say what is served; "
                "--node-key-file says who may"
            )
        try:
            check_node_name(self.node or "none")
        except ValueError as error:
            raise InputError(f"--node: {error}") from None
        if not self.zone.isprintable():
            raise InputError(f"--zone {self.zone!r}: expected text that can be printed")

    def trusted(self, models: Path | str | None) -> TrustedModels:
        """The models that may be code: of a folder or bucket that is named, all."""
        others = models is None or str(models).startswith(PUBLIC)
        return TrustedModels.of(self.trust_models or ("none" if others else "all"))


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What the operator chose."""

    root: Path
    accelerators: Accelerators | SimulatedAccelerators
    system: System
    profiles: Path
    host: str
    options: ServeOptions
    trusted: TrustedModels
    fetches: bool = False  #: ``root`` is filled with what a controller says
    renew: Callable[[], Path] | None = None  #: fetches a repository elsewhere as it is now

    @property
    def keys(self) -> ApiKeys:
        """The keys that callers need."""
        return ApiKeys(self.options.api_key, self.options.admin_key, self.options.node_key)


class LiveServer:
    """A live server, its parts wired; nothing listens and nothing is loaded yet."""

    def __init__(self, choices: ServeSettings) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop)
        otlp = choices.options.otlp  # checked before anything is taken
        self._spans = (
            RequestSpans(span_exporter(otlp, "interlace"), self.clock.now_ms) if otlp else None
        )
        self.arena = Arena.create(int(choices.options.request_memory_mb * (1 << 20)))
        self.arena.touch(RESERVE_BYTES)
        self.arenas = ArenaMap(os.getpid())
        self.arenas.add(self.arena)
        inputs = (self.arena.number,)
        self._uploads = Uploads()
        files_dir = self._uploads.folder
        self.devices = choices.accelerators.make(loop, self.arenas, inputs, files_dir)
        self.fleet = Fleet(choices.accelerators.gpus)
        self.engine = Engine(self.fleet, choices.system)
        self._planner = ThreadPoolExecutor(1, "planner")
        self._assigned = AssignedPlanSolver(self.clock) if choices.options.assigned else None
        solver = self._assigned or ProcessPlanSolver(choices.system, self.clock, self._planner)
        self.table = ModelTable()
        self._log = self._log_of(choices)
        self.runtime = Runtime(
            self.engine,
            self.clock,
            {device.gpu.id: device for device in self.devices.all},
            solver,
            [
                ExecutionCounter(self.table),
                WorkerDeathObserver(),
                *([self._log] if self._log else []),
                *([self._spans] if self._spans else []),
            ],
        )
        self.devices.on_away(self.runtime.gpu_failed, self.runtime.gpu_recovered)
        self._core_wait = RunDelay(loop)
        self.loop_delay = LoopDelay(loop, self._core_wait.all_ms)
        self._data_plane()
        self.registry = VersionRegistry()
        self.statuses = StatusFutures(self.registry, self.table)
        self.runtime.on_status = self.statuses.report
        self._watching: list[asyncio.Future[None]] = []
        self._fetches = choices.fetches
        self._control(choices)
        self._node(choices)
        self._transports(choices)

    def _data_plane(self) -> None:
        """What takes requests: of sequences, of ensembles and of models."""
        memory = TensorMemory(self.arena, self.arenas)
        self.apps = SequenceRuntime(
            self.runtime, self._model, self._step_ended, memory, self.arena.size_bytes // 2
        )
        if self._spans is not None:
            self.apps.on_asked = self._spans.begin_step
        self.plane = DataPlane(
            self.apps, self.table, self.arenas, waited_ms=self._core_wait.ms, spans=self._spans
        )
        self.custom_metrics = CustomMetrics()
        self._model_calls = ModelCalls(self.plane, self.table, self.clock, self.apps.members)
        for device in self.devices.all:
            if isinstance(device, CpuDevice):
                device.serve_code(self._model_calls, self.custom_metrics.apply)

    def _code_ready(self, key: str) -> bool:
        return all(one.code_ready(key) for one in self.devices.all if isinstance(one, CpuDevice))

    def _model(self, name: str, version: str) -> Model:
        return self.table.resolve(name, version).model

    def _log_of(self, choices: ServeSettings) -> LogWriter | None:
        asked = choices.options
        if asked.log is None:
            return None
        started = datetime.now().astimezone().isoformat(timespec="milliseconds")
        header = LogHeader(__version__, choices.system.name, self.fleet, started=started)
        return LogWriter(asked.log, header, self.engine, int(asked.log_limit_mb * 1e6))

    def _control(self, choices: ServeSettings) -> None:
        rig = Rig(self.devices.all[0], self.clock, self.arena)
        where, options, layers = choices.accelerators, choices.options, None
        if isinstance(where, SimulatedAccelerators):
            store: ProfileStore = where.profiles
        else:
            store = ProfileStore(choices.profiles)
            if where.gpus[0].weights_bytes > 0:
                layers = ExtraProfiling(ExtraMetrics(layers=True), where, rig, store)
        preparation = ModelPreparer(
            choices.root, self.devices.describe, rig, store, choices.trusted, layers, choices.renew
        )
        deployments = Deployments(self.runtime, self.devices, self.table, self.statuses)
        ensembles = Ensembles(self.apps, self.table, self.registry)
        self.at_hand = AvailableModels(preparation, self.devices, self.registry, ensembles)
        self.table.at_hand = self.at_hand.found
        self.table.why_missing = self.registry.why_missing
        allowed = ("all",) if options.assigned else options.allow_missing
        self.lifecycle = ModelLifecycle(
            preparation,
            deployments,
            self.devices,
            self.registry,
            ensembles,
            self._uploads,
            allowed,
        )
        self._refinement = ProfileRefinement(
            preparation,
            self.registry,
            self.devices,
            self.lifecycle.load,
            self.runtime.deliver,
            self._idle_s,
        )
        self._poll = RepositoryPoll(preparation, self.lifecycle, self.registry, options.poll_s)
        self.startup = Startup(
            preparation, deployments, self.devices, self.registry, self.lifecycle.locked, ensembles
        )

    def _node(self, choices: ServeSettings) -> None:
        """What routers and controllers see."""
        calls = ControllerCalls(choices.keys.order, choices.options.tls)
        self.wanted = WantedModels(choices.root, choices.fetches, calls, self._have_changed)
        self.assignments = Assignments(
            self.runtime, self.fleet, self.lifecycle, self._assigned, self.wanted
        )
        self._began = secrets.randbits(48)
        self.node_states = NodeStates(
            self.engine,
            self.table,
            self.clock,
            lambda: self.plane.accepting and self.lifecycle.ready(),
            lambda: self.statuses.is_settled,
            self.assignments,
            self._began,
            self.apps.served,
        )

    def _transports(self, choices: ServeSettings) -> None:
        regions = Regions(choices.options.allow_client_shm)
        self.figures = SnapshotSource(
            self.engine.snapshot,
            self.arena,
            self.registry,
            lambda: self.plane.in_flight,
            lambda: self.http.connections,
            self.loop_delay.delays,
        )
        admin = AdminApi(
            self.plane,
            self.table,
            self.lifecycle,
            self.clock,
            regions,
            self.figures.resident_bytes,
            self.figures.weights_states,
            self.node_states.state,
            self._code_ready,
        )
        self._model_calls.control = ModelControlCalls(admin, self.clock, self.arenas).take
        metrics = Metrics(self.table, self.figures.snapshot, self.custom_metrics.add_to)
        bodies = BodyDecoder(self.arena)
        context = InferenceContext(self.plane, self.table, self.arena, self.arenas, regions, bodies)
        routes = [*all_routes(admin, metrics.render), *self._orders(choices)]
        keys, origins = choices.keys, _origins(choices)
        # A GPU's driver locks the pages of requests, and would go on reading those given back.
        where = choices.accelerators
        trims = isinstance(where, SimulatedAccelerators) or not where.settings
        limits = HttpLimits()
        inference = InferenceHandler(context, limits)
        self.http = HttpServer(routes, inference, limits, keys, origins, trims)
        # The first of a path answers: here the page is at /, which names the server elsewhere.
        pages = [
            *self._page(choices),
            metrics_route(metrics.render),
            *admin_routes(admin, HEALTH_METHODS),
        ]
        self.metrics = HttpServer(pages, keys=keys, origins=origins)
        self.grpc = GrpcServer(LocalInference(context, GrpcLimits()), admin, keys)

    def _page(self, choices: ServeSettings) -> list[Route]:
        simulated = isinstance(choices.accelerators, SimulatedAccelerators)
        store = None if simulated else ProfileStore(choices.profiles)
        system, log = choices.system.name, choices.options.log
        return live_page(self.runtime, self.engine.snapshot, system, log, store, self.registry)

    def _orders(self, choices: ServeSettings) -> list[Route]:
        return node_routes(
            lambda: self._described(choices),
            lambda: self.at_hand.found,
            lambda: self.assignments.newest,
            self._assign,
            self.assignments.drain,
            self.wanted.order,
        )

    def _described(self, choices: ServeSettings) -> NodeDescription:
        return NodeDescription(
            self.assignments.node,
            choices.options.zone,
            self._began,
            __version__,
            choices.options.assigned,
            self.fleet.gpus,
            isinstance(choices.accelerators, SimulatedAccelerators),
        )

    def _step_ended(self, model: str, reply: Reply, now_ms: float) -> None:
        self.table.record(model, reply, now_ms)
        if self._spans is not None:
            self._spans.end(reply, now_ms)

    async def _assign(self, assignment: Assignment) -> Revision:
        return await self.assignments.assign(assignment, AssignedPlan(assignment.plan))

    async def bring_up(self, on_step: OnSweepStep) -> Sequence[Model]:
        """Load what is served from the beginning: nothing if assignments come from outside.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        if self._assigned is None:
            return await self.startup.run(on_step)
        if self._fetches:
            _LOG.info("waiting for a controller, which says what to fetch and to serve")
            return []
        await self.at_hand.survey(on_step)
        await self.wanted.look()
        known = counted(len(self.at_hand.found), "model")
        _LOG.info("waiting for an assignment; at hand: %s", known)
        return []

    async def _have_changed(self, new: Collection[str], gone: Collection[str]) -> None:
        """Models of the repository are others than before; what is served of them is reloaded."""
        await self.at_hand.update(new, gone)
        for name in new:
            if self.registry.serving(name):
                try:
                    await self.lifecycle.load(name)
                except ServeError as error:
                    _LOG.error("%s is served as it was: %s", name, error)

    def _idle_s(self) -> float:
        """For how long nothing has been asked of it."""
        since_ms = self.clock.now_ms() - self.plane.last_request_ms
        return 0.0 if self.plane.in_flight else since_ms / 1000.0

    def watch(self) -> None:
        """Begin to look after workers on cores, and after profiles, once a second."""
        if self._assigned is None:
            self._watching += map(asyncio.ensure_future, [self._refinement.run(), self._poll.run()])
        self._watching += [
            asyncio.ensure_future(WorkerMonitor(device, self.engine.snapshot, self.registry).run())
            for device in self.devices.all
            if isinstance(device, CpuDevice)
        ]

    async def close(self) -> None:
        """Give everything back, also of a start that failed: its ports can be had at once."""
        await asyncio.gather(self.http.close(0.0), self.metrics.close(0.0))
        self.startup.close()
        self.assignments.close()
        self.wanted.close()
        for task in self._watching:
            task.cancel()
        self.grpc.close()
        self.devices.close()
        self.loop_delay.close()
        self._core_wait.close()
        if self._log is not None:
            self._log.close()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        self._planner.shutdown(wait=False, cancel_futures=True)
        self.arenas.close()
        self.arena.close()


def _origins(choices: ServeSettings) -> Origins:
    """The names that requests may call this server by: any, where it listens to others too."""
    if not loopback(choices.host) and not choices.options.allow_hosts:
        return Origins()
    names = ("localhost", choices.host, *choices.options.allow_hosts)
    return Origins(frozenset(name.lower() for name in names))
