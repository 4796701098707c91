"""A server of a folder of models, from taking its ports to the last answer."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from interlace.assembly.accelerators import NAMES, Accelerators, choose_accelerators
from interlace.assembly.live_server import LiveServer, ServeOptions, ServeSettings
from interlace.assembly.machine import (
    cpu_settings,
    default_profiles,
    fetched_models,
    find_models,
    local_repository,
)
from interlace.assembly.simulated_accelerators import NAME as SIMULATED
from interlace.assembly.simulated_accelerators import SimulatedAccelerators, simulated_accelerators
from interlace.control.lifecycle import ModelLifecycle, drain
from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model, TrustedModels
from interlace.core.tables import counted
from interlace.core.user_errors import InputError
from interlace.device.process.sandbox import why_unconfined
from interlace.engine.snapshot import EngineSnapshot
from interlace.planning.plan_file import following, unknown_models
from interlace.policy.base import System
from interlace.policy.catalog import system_of
from interlace.profiling.sweep import OnSweepStep, no_progress
from interlace.repository.remote import is_remote
from interlace.runtime.event_loop import (
    raise_descriptor_limit,
    run_loop,
    settle_memory,
    wait_for_turns,
)
from interlace.runtime.plan_solver import unsendable
from interlace.server.api_keys import DIGEST
from interlace.server.http.request_head import loopback
from interlace.server.tls import CLEAR_KEYS, GRPC, HTTP

_LOG: Final = logging.getLogger(__name__)
_NOT_READY: Final = (
    "not ready (/v2/health/ready is 503) without: %s; others are served; "
    "--allow-missing NAME says which may be missing"
)
_LOOK_S: Final = 1.0


class ServerPorts(NamedTuple):
    """Where a server listens."""

    http: int
    grpc: int
    metrics: int

    @classmethod
    def asked(cls, http: int, grpc: int | None, metrics: int | None) -> ServerPorts:
        """8001 and 8002 where none are asked for, or free ones where ``http`` is 0."""
        usual = (8001, 8002) if http else (0, 0)
        return cls(
            http,
            usual[0] if grpc is None else grpc,
            usual[1] if metrics is None else metrics,
        )


#: Told once, when every model is loaded and requests are answered.
OnReady = Callable[[Sequence[Model], EngineSnapshot], None]


class Server:
    """A server that runs in a thread of its own while it is entered, or in this one (``run``).

    ``ports`` are known, and every model is loaded, once it is entered.
    """

    def __init__(self, settings: ServeSettings, ports: ServerPorts) -> None:
        self._settings, self._asked, self._options = settings, ports, settings.options
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ended: Future[None] = Future()
        self.ports = ports
        self.models: tuple[Model, ...] = ()

    @property
    def url(self) -> str:
        """Where HTTP is spoken."""
        scheme = "http" if self._options.tls.cert is None else "https"
        return f"{scheme}://{self._settings.host}:{self.ports.http}"

    def __enter__(self) -> Server:
        """Serve in a thread; returns when every model is loaded.

        Raises:
            ServeError, RepositoryError, UserError: it cannot begin: why.
        """
        ready: Future[None] = Future()
        self._stop, self._ended = asyncio.Event(), Future()
        self._thread = threading.Thread(target=self._in_thread, args=(ready,), daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer what was accepted, then give everything back; a second call does nothing.

        Raises:
            ServeError: requests were unanswered after ``exit_timeout_s``.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._ended.result()

    def run(
        self, on_step: OnSweepStep = no_progress, on_ready: OnReady = lambda models, engine: None
    ) -> None:
        """Serve in this thread, the main one, until SIGTERM or SIGINT.

        ``on_step`` hears of each point that is measured of models that are new.

        Raises:
            ServeError, RepositoryError, UserError: it cannot begin, or requests were unanswered
                at the end.
        """

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            await self._serve(on_step, ready)

        def ready(models: Sequence[Model], engine: EngineSnapshot) -> None:
            settle_memory()
            on_ready(models, engine)

        run_loop(serve())

    def _in_thread(self, ready: Future[None]) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._serve(no_progress, lambda models, engine: ready.set_result(None))

        try:
            run_loop(serve())
        except BaseException as error:
            if ready.done():
                self._ended.set_exception(error)
                return
            ready.set_exception(error)
        self._ended.set_result(None)

    async def _serve(self, on_step: OnSweepStep, on_ready: OnReady) -> None:
        wait_for_turns()
        raise_descriptor_limit()
        server = LiveServer(self._settings)
        try:
            # Ports are taken before anything slow begins, so that a busy one fails at once.
            self.ports = await self._listen(server)
            starting = asyncio.ensure_future(self._start(server, on_step, on_ready))
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                if self._options.exit_on_error:
                    await _complete(server.lifecycle, stopping)
                await stopping
                await self._delay(server)
            else:
                starting.cancel()
                await asyncio.wait({starting})  # what it opened is closed after it
            await self._end(server)
        finally:
            await server.close()

    async def _listen(self, server: LiveServer) -> ServerPorts:
        host, tls, keys = self._settings.host, self._options.tls, self._settings.keys
        try:
            http = await server.http.listen(host, self._asked.http, tls.listener(HTTP, mutual=True))
            metrics = await server.metrics.listen(host, self._asked.metrics, tls.listener(HTTP))
            grpc = await server.grpc.listen(host, self._asked.grpc, tls.listener(GRPC, mutual=True))
        except OSError as error:
            raise ServeError(Reason.NOT_READY, error.strerror or str(error)) from error
        if tls.cert is None and (keys.admin or keys.node) and not loopback(host):
            _LOG.warning(CLEAR_KEYS, host)
        server.assignments.node = self._options.node or f"{socket.gethostname()}:{http}"
        return ServerPorts(http, grpc, metrics)

    async def _start(self, server: LiveServer, on_step: OnSweepStep, on_ready: OnReady) -> None:
        models = await server.bring_up(on_step)
        server.runtime.start()
        server.watch()
        server.lifecycle.started = True
        self.models = tuple(models)
        on_ready(models, server.engine.snapshot())
        _tell_confinement(self._settings)
        how = "ready" if server.lifecycle.ready() else "not ready"
        if how != "ready":
            _LOG.error(_NOT_READY, ", ".join(sorted(server.registry.missing())))
        _LOG.info("%s: HTTP on %d, gRPC on %d, metrics on %d", how, *self.ports)
        server.loop_delay.start()

    async def _delay(self, server: LiveServer) -> None:
        """Serve on while load balancers that watch readiness send new requests elsewhere.

        Every connection closes with its next response. A second signal ends the wait.
        """
        server.lifecycle.draining = True
        server.http.drain()
        delay_s = self._options.drain_delay_s
        if delay_s > 0:
            _LOG.info("not ready any more; serving on for %g s", delay_s)
            self._stop.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stop.wait()

    async def _end(self, server: LiveServer) -> None:
        grace_s = self._options.exit_timeout_s
        in_flight = counted(server.plane.in_flight, "request")
        _LOG.info("stopping: %s in flight, answered first", in_flight)
        transports = [
            server.http.close(grace_s),
            server.grpc.drain(grace_s),
            server.metrics.close(1.0),
        ]
        left = await drain(server.lifecycle, server.plane, transports, grace_s)
        if left:
            raise ServeError(Reason.BACKEND, f"{left} requests were unanswered after {grace_s:g} s")


async def _complete(lifecycle: ModelLifecycle, stopping: asyncio.Task[Literal[True]]) -> None:
    """Wait until every model that must be served is, or a stop is requested."""
    while not lifecycle.ready() and not stopping.done():
        failed = [f"{name}: {why}" for name, why in lifecycle.failed().items()]
        if failed:
            raise ServeError(Reason.NOT_READY, f"--exit-on-error: {'; '.join(failed)}")
        await asyncio.wait({stopping}, timeout=_LOOK_S)


def serve(
    models: Path | str | None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grpc_port: int | None = None,
    metrics_port: int | None = None,
    device: str = "auto",
    gpu: str | None = None,
    gpus: str | None = None,
    cores: str | None = None,
    system: str | System = "interlace",
    plan: Path | str | None = None,
    profiles: Path | None = None,
    memory_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    options: ServeOptions = ServeOptions(),
) -> Server:
    """A server of a folder of models (docs/repository.md), over KServe v2; nothing begins yet.

    ``models`` may be a URL of a store (docs/repository.md), whose files are fetched first.
    Without a folder, an assigned server fetches its models from the controller.
    It listens on ``host`` at ``port`` (HTTP), ``grpc_port`` (8001) and ``metrics_port`` (8002); 0
    takes a free one, a ``port`` of 0 three. ``device`` is auto, cpu, green, mps or streams;
    ``gpus`` such as "0,1" and ``cores`` such as "0-3,6" name some of them. With "simulated", which
    computes nothing (docs/fleet.md), there are ``gpus`` (how many) of the kind ``gpu``, such as
    "h100". ``system`` plans and schedules, or a saved ``plan`` is followed. ``profiles`` is the
    folder where latencies are kept. If ``memory_bytes`` is given, weights are swapped within it,
    on each accelerator. On cores the page cache keeps at most ``host_memory_bytes`` of their files.

    Example::

        with interlace.serve("models/", port=0) as server:  # or .run(), until Ctrl-C or SIGTERM
            print(server.url, [model.name for model in server.models])

    Raises:
        InputError: the plan or the system cannot be used; what is expected.
        UserError, RepositoryError: there is no such device, no model, or no such folder.
    """
    root, folder = _root(models, options, port), profiles or default_profiles()
    sizes = memory_bytes or 0, host_memory_bytes
    renew = partial(local_repository, models) if models and is_remote(str(models)) else None
    read = root.parent if renew else root  # it is another folder after a change there
    where = _accelerators(device, gpu, gpus, cores, folder, read).with_weights(*sizes)
    planned, trusted = _planned_by(system, plan, where, root), options.trusted(models)
    settings = ServeSettings(
        root, where, planned, folder, host, options, trusted, models is None, renew
    )
    return Server(settings, ServerPorts.asked(port, grpc_port, metrics_port))


def _tell_confinement(settings: ServeSettings) -> None:
    """Say what keeps models from reading what the server's user can read."""
    where = settings.accelerators
    if isinstance(where, SimulatedAccelerators):
        return
    reason = "workers of GPUs are not confined" if where.settings else why_unconfined()
    if not reason:
        _LOG.info("workers read MODELS_DIR and libraries alone, and write weights (Landlock)")
    elif settings.trusted != TrustedModels():
        _LOG.warning(
            "models that are code can read what this server's user can, keys included: %s; "
            "--trust-models none, or a user without rights (SECURITY.md)",
            reason,
        )


def _root(models: Path | str | None, options: ServeOptions, port: int) -> Path:
    if options.poll_s < 0.0:
        raise InputError(f"--poll-s is {options.poll_s:g}; expected seconds, or 0 for never")
    if options.poll_s and options.assigned:
        raise InputError("--poll-s: a node that is --assigned follows its controller already")
    if models is not None:
        return local_repository(models)
    if not options.assigned:
        raise InputError("MODELS_DIR is missing: only a node that is --assigned fetches its models")
    if (options.node_key or options.admin_key or options.api_key).startswith(DIGEST):
        raise InputError(
            "the key file holds a digest; a node that fetches its models shows the key itself"
        )
    return fetched_models(options.node or f"port-{port}")


def _accelerators(
    device: str, gpu: str | None, gpus: str | None, cores: str | None, folder: Path, root: Path
) -> Accelerators | SimulatedAccelerators:
    if device == SIMULATED:
        return simulated_accelerators(gpu, gpus, folder)
    if device not in NAMES:
        raise InputError(f"--device {device}: expected one of {', '.join((*NAMES, SIMULATED))}")
    if gpu is not None:
        raise InputError(f"--gpu {gpu} with --device {device}: it says what --device simulated is")
    return choose_accelerators(device, cpu_settings(cores, folder.parent / "weights", root), gpus)


def _planned_by(
    system: str | System,
    plan: Path | str | None,
    where: Accelerators | SimulatedAccelerators,
    root: Path,
) -> System:
    """The system, bound to a plan if there is one; models of it that are not here are logged."""
    path = None if plan is None else Path(plan)
    found = following(system_of(system), path, where.gpus[0])
    if reason := unsendable(found):
        raise InputError(f"system {found.name}: {reason}")
    if path is not None:
        for name in unknown_models(found, {one.name for one in find_models(root, ())}):
            _LOG.warning("%s: %s has no model '%s'", path, root, name)
    return found
