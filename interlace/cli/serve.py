"""`interlace serve`: profile what is new, plan, and serve a folder of models."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.live_server import LiveServer, ServeSettings
from interlace.assembly.machine import cpu_settings, default_profiles
from interlace.assembly.model_folders import find_models
from interlace.cli.log_output import LogLevel, configure_logging
from interlace.cli.options import (
    Cores,
    Device,
    Gpus,
    Profiles,
    Root,
    SystemName,
    positive,
    read_key,
)
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import console
from interlace.cli.servetable import show_serving
from interlace.control.shutdown import drain
from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Gpu
from interlace.core.user_errors import InputError
from interlace.planning.plan_file import following, unknown_models
from interlace.planning.systems import system_of
from interlace.policy.base import System
from interlace.runtime.plan_process import unsendable
from interlace.server.api_keys import ApiKeys

_log = logging.getLogger(__name__)

_Host = Annotated[str, typer.Option(help="Where to listen; loopback only by default.")]
_Http = Annotated[int, typer.Option(help="KServe v2 over HTTP.")]
_Grpc = Annotated[int, typer.Option(help="KServe v2 over gRPC.")]
_Metrics = Annotated[int, typer.Option(help="Prometheus metrics.")]
_KeyFile = Annotated[Path | None, typer.Option(help="Ask callers for the key in this file.")]
_AdminFile = Annotated[
    Path | None, typer.Option(help="Ask for the key in this file where a call changes the server.")
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Also answer requests to this Host name; may be repeated."),
]
_Shm = Annotated[bool, typer.Option("--allow-client-shm", help="Let clients pass shared memory.")]
_Plan = Annotated[
    Path | None, typer.Option("--plan", help="Follow this plan (interlace plan --save).")
]
_Log = Annotated[Path | None, typer.Option(help="Keep every event, for interlace replay.")]
_LogLimit = Annotated[
    float, typer.Option(metavar="MB", help="Most that --log and the file before it hold.")
]
_LogLevel = Annotated[LogLevel, typer.Option(help="Least level of messages on stderr.")]
_Requests = Annotated[
    float, typer.Option(metavar="MB", help="Most memory for the bodies of HTTP requests.")
]
_Delay = Annotated[float, typer.Option(help="After SIGTERM, serve on for so long while not ready.")]
_Grace = Annotated[float, typer.Option(help="How long SIGTERM waits for accepted requests.")]


def serve(
    models_dir: Root,
    host: _Host = "127.0.0.1",
    http_port: _Http = 8000,
    grpc_port: _Grpc = 8001,
    metrics_port: _Metrics = 8002,
    device: Device = "auto",
    gpus: Gpus = None,
    cores: Cores = None,
    system: SystemName = "interlace",
    plan_file: _Plan = None,
    profiles: Profiles = None,
    api_key_file: _KeyFile = None,
    admin_key_file: _AdminFile = None,
    allow_host: _Hosts = None,
    allow_client_shm: _Shm = False,
    request_memory_mb: _Requests = 2048.0,
    drain_delay_s: _Delay = 0.0,
    exit_timeout_s: _Grace = 30.0,
    log: _Log = None,
    log_limit_mb: _LogLimit = 1000.0,
    log_level: _LogLevel = LogLevel.INFO,
) -> None:
    """Profile what is new, plan, and serve a folder of models.

    Each model has an SLO (interlace.toml, 100 ms without one). Requests that cannot be answered
    in time are refused when they arrive. Ctrl-C and SIGTERM answer what was accepted, then end.

    \b
    Examples:
      interlace serve models/ --host 0.0.0.0 --api-key-file /run/secrets/key
      interlace serve models/ --plan plan.json --log events.log  # for interlace replay
    """
    positive({"--log-limit-mb": log_limit_mb, "--request-memory-mb": request_memory_mb})
    folder = profiles or default_profiles()
    where = choose_accelerators(device, cpu_settings(cores, folder.parent / "weights"), gpus)
    choices = ServeSettings(
        root=models_dir,
        accelerators=where,
        system=_system(system, plan_file, where.gpus[0], models_dir),
        profiles=folder,
        host=host,
        grpc_port=grpc_port,
        keys=_keys(api_key_file, admin_key_file),
        allow_client_shm=allow_client_shm,
        allow_hosts=tuple(allow_host or ()),
        arena_bytes=int(request_memory_mb * (1 << 20)),
        log=log,
        log_bytes=int(log_limit_mb * 1e6),
    )
    ending = ShutdownTimes(drain_delay_s, exit_timeout_s)
    uvloop.run(run(choices, http_port, metrics_port, ending, log_level))


def _keys(api: Path | None, admin: Path | None) -> ApiKeys:
    return ApiKeys(read_key(api) or "", read_key(admin, "--admin-key-file") or "")


def _system(name: str, plan_file: Path | None, gpu: Gpu, root: Path) -> System:
    """Who plans; a plan's models that the repository lacks are named."""
    found = following(system_of(name), plan_file, gpu)
    if reason := unsendable(found):
        raise InputError(f"--system {name}: {reason}")
    if plan_file is not None:
        for model in unknown_models(found, {one.name for one in find_models(root, ())}):
            typer.echo(f"--plan {plan_file}: {root} has no model '{model}'", err=True)
    return found


@dataclass(frozen=True, slots=True)
class ShutdownTimes:
    """How a server ends: serving on for ``delay_s`` while not ready, then ``grace_s`` to answer."""

    delay_s: float
    grace_s: float


async def run(
    choices: ServeSettings,
    http_port: int,
    metrics_port: int,
    ending: ShutdownTimes,
    log_level: LogLevel = LogLevel.INFO,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    out = console(stderr=True)
    configure_logging(out, log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _wait_for_turns()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    assembly = LiveServer(choices)
    try:
        ports = await _listen(assembly, choices, http_port, metrics_port)
        starting = asyncio.ensure_future(_start(assembly, out, ports))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stopping
            await _delay(assembly, stop, ending.delay_s)
        else:
            starting.cancel()
        await _end(assembly, ending.grace_s)
    finally:
        await assembly.close()


async def _listen(
    assembly: LiveServer, choices: ServeSettings, http_port: int, metrics_port: int
) -> tuple[int, int, int]:
    """Take all three ports before anything slow is begun: a busy one is told at once."""
    http = await assembly.http.listen(choices.host, http_port)
    metrics = await assembly.metrics.listen(choices.host, metrics_port)
    grpc = await assembly.grpc.listen(choices.host, choices.grpc_port)
    return http, grpc, metrics


async def _start(assembly: LiveServer, out: Console, ports: tuple[int, int, int]) -> None:
    with ProgressBar(out) as bar:
        serving = await assembly.startup.run(bar.sweep_step)
    assembly.runtime.start()
    assembly.watch()
    _settle_memory()
    assembly.lifecycle.started = True
    show_serving(out, serving, assembly.engine.snapshot())
    http, grpc, metrics = ports
    _log.info("ready: HTTP on %d, gRPC on %d, metrics on %d; Ctrl-C stops", http, grpc, metrics)


def _wait_for_turns() -> None:
    """Let a model that computes on this core finish its time slice before requests are read.

    Else every packet of every request interrupts it, for work of 0.1 ms: in overload that is a
    quarter of the core. Where a core is idle it is taken at once. Processes begun from here on are
    scheduled as usual.
    """
    with suppress(OSError):  # forbidden in some sandboxes
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _settle_memory() -> None:
    """Collect what starting left, and look at the rest rarely.

    Requests make no cycles, and a collection in the middle of one walks everything that was ever
    loaded: tens of milliseconds on somebody's deadline.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


async def _delay(assembly: LiveServer, stop: asyncio.Event, delay_s: float) -> None:
    """Serve on while whoever watches readiness sends new requests elsewhere.

    Every connection is told to close with its next response. A second signal ends the wait.
    """
    assembly.lifecycle.draining = True
    assembly.http.drain()
    if delay_s > 0:
        _log.info("not ready any more; serving on for %g s", delay_s)
        stop.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay_s)


async def _end(assembly: LiveServer, grace_s: float) -> None:
    _log.info("stopping: %d requests in flight are answered first", assembly.plane.in_flight)
    doors = [
        assembly.http.close(grace_s),
        assembly.grpc.drain(grace_s),
        assembly.metrics.close(1.0),
    ]
    left = await drain(assembly.lifecycle, assembly.plane, doors, grace_s)
    if left:
        raise ServeError(Reason.BACKEND, f"{left} requests were unanswered after {grace_s:g} s")
