"""`interlace serve`: profile what is new, plan, and serve a folder of models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

import interlace
from interlace.assembly.live_server import ServeOptions
from interlace.assembly.simulated_accelerators import NAME as SIMULATED
from interlace.cli.options import (
    Cores,
    FollowedPlan,
    Grace,
    Grpc,
    Host,
    Http,
    Level,
    NodeKeyFile,
    Otlp,
    Profiles,
    Requests,
    SystemName,
    TlsCert,
    TlsKey,
    TrustModels,
    WeightsMemory,
    positive,
    read_keys,
    size_bytes,
)
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import FoldingTable, LogLevel, console, show_logs
from interlace.control.snapshots import Placement, placements
from interlace.core.model import Model
from interlace.core.tables import counted
from interlace.core.user_errors import InputError
from interlace.engine.snapshot import EngineSnapshot
from interlace.server.tls import TlsFiles

#: Of more models than this the first ones are printed.
_SHOWN: Final = 50


def show_serving(out: Console, serving: Sequence[Model], engine: EngineSnapshot) -> None:
    """Print one line per model and partition, of the first models if there are many."""
    made = FoldingTable(
        ["model", "where"], ["SLO ms", "share", "batch", "capacity rows/s", "MB"], prose=["where"]
    )
    here: defaultdict[str, list[Placement]] = defaultdict(list)
    for place in placements(engine):
        here[place.model].append(place)
    for model in serving[:_SHOWN]:
        for place in here[model.key]:
            made.add_row(*_line(model, place, engine))
    if made.row_count:  # else it waits to be told
        out.print(made)
    if len(serving) > _SHOWN:
        out.print(f"and {counted(len(serving) - _SHOWN, 'more model')}: interlace top shows all")


def _line(model: Model, place: Placement, engine: EngineSnapshot) -> tuple[str, ...]:
    unit = "core" if engine.fleet.gpu(place.gpu).kind.startswith("cpu") else "SM"
    resident = engine.partitions[place.partition].resident_bytes.get(model.key, 0)
    name = model.name if model.version == 1 else f"{model.name}/{model.version}"
    return (
        name,
        f"{place.gpu} {unit} {_spans(place.units)}",
        f"{model.terms.slo_ms:g}",
        f"{place.share_pct} %",
        str(place.batch),
        f"{place.rows_per_s:.1f}",
        f"{resident / 1e6:.0f}",
    )


def _spans(units: Sequence[int]) -> str:
    """Unit numbers, those in a row as a span: ``0-7,12``."""
    spans: list[list[int]] = []
    for unit in sorted(units):
        if spans and unit == spans[-1][-1] + 1:
            spans[-1][1:] = [unit]
        else:
            spans.append([unit])
    return ",".join("-".join(map(str, span)) for span in spans)


_Metrics = Annotated[int, typer.Option(help="Port of Prometheus metrics and health probes.")]
_KeyFile = Annotated[Path | None, typer.Option(help="File with the key that callers must send.")]
_AdminFile = Annotated[
    Path | None, typer.Option(help="File with the key for calls that change the server.")
]
_Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="PEM",
        help="With --tls-cert: HTTP and gRPC callers, and the controller that models come from, "
        "need a certificate that this authority signed.",
    ),
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Accept this Host name, too; may be repeated."),
]
_Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-missing",
        metavar="NAME|all",
        help="Be ready even if this model cannot be served; may be repeated.",
    ),
]
_Exit = Annotated[
    bool,
    typer.Option(
        "--exit-on-error",
        help="Exit if a model cannot be served that --allow-missing does not name.",
    ),
]
_Shm = Annotated[bool, typer.Option("--allow-client-shm", help="Allow shared memory of clients.")]
_Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="CPU cores, or a GPU partitioned by green contexts, by MPS or not at all (streams). "
        "auto: a GPU if there is one. simulated: nothing is computed; a batch takes its profile's "
        "time on --gpu.",
        metavar="auto|cpu|green|mps|streams|simulated",
    ),
]
_Kind = Annotated[
    str | None,
    typer.Option("--gpu", help="With --device simulated: kind of GPU, such as h100."),
]


def _asked_for(context: typer.Context, gpus: str | None) -> str | None:
    """CUDA_VISIBLE_DEVICES names this machine's GPUs, and says not how many are simulated."""
    source = context.get_parameter_source("gpus")
    environment = source is not None and source.name == "ENVIRONMENT"
    return None if environment and context.params.get("device") == SIMULATED else gpus


_Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        envvar="CUDA_VISIBLE_DEVICES",
        help="GPUs to use: numbers, GPU-... or MIG-... ids; with --device simulated their count.",
        metavar="0,1",
        callback=_asked_for,
    ),
]
_Assigned = Annotated[
    bool, typer.Option("--assigned", help="Serve only what a fleet's controller assigns.")
]
_Node = Annotated[str, typer.Option(help="Name in a fleet.  [default: HOST:PORT]")]
_Zone = Annotated[str, typer.Option(help="Failure domain in a fleet: a rack, a room.")]
_HostMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="With --memory on cores: page cache for weights."),
]
_Cold = Annotated[
    str | None,
    typer.Option(
        help="With --memory: cold-start policy (copy, pipeswitch, deepplan, interlace ...)."
    ),
]
_Log = Annotated[Path | None, typer.Option(help="Write every event, for interlace replay.")]
_LogLimit = Annotated[
    float, typer.Option(metavar="MB", help="Size limit of --log and its predecessor together.")
]
_Poll = Annotated[
    float,
    typer.Option(help="Seconds between looks for changed, new and removed models; 0: never."),
]
_Delay = Annotated[float, typer.Option(help="Seconds to serve after SIGTERM while not ready.")]


_Models = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODELS_DIR]",
        help="The model repository: a folder, or a URL such as s3://bucket/models. Optional with "
        "--assigned: models are then fetched.",
    ),
]


def serve(
    models_dir: _Models = None,
    host: Host = "127.0.0.1",
    http_port: Http = 8000,
    grpc_port: Grpc = 8001,
    metrics_port: _Metrics = 8002,
    device: _Device = "auto",
    gpu: _Kind = None,
    gpus: _Gpus = None,
    cores: Cores = None,
    system: SystemName = "interlace",
    plan: FollowedPlan = None,
    assigned: _Assigned = False,
    node: _Node = "", zone: _Zone = "",
    profiles: Profiles = None,
    memory: WeightsMemory = None,
    host_memory: _HostMemory = None,
    cold: _Cold = None,
    api_key_file: _KeyFile = None, admin_key_file: _AdminFile = None,
    node_key_file: NodeKeyFile = None,
    tls_cert: TlsCert = None, tls_key: TlsKey = None, ca: _Ca = None,
    allow_host: _Hosts = None, allow_client_shm: _Shm = False,
    trust_models: TrustModels = "", allow_missing: _Missing = None,
    exit_on_error: _Exit = False, request_memory_mb: Requests = 2048.0,
    poll_s: _Poll = 0.0, drain_delay_s: _Delay = 0.0, exit_timeout_s: Grace = 30.0, otlp: Otlp = "",
    log: _Log = None, log_limit_mb: _LogLimit = 1000.0, log_level: Level = LogLevel.INFO,
) -> None:  # fmt: skip
    """Profile what is new, plan, and serve a folder of models.

    Requests that cannot meet their SLO are refused on arrival. SIGTERM answers accepted ones first.

    \b
    Examples:
      interlace serve models/ --host 0.0.0.0 --api-key-file key --tls-cert tls.crt --tls-key tls.key
      interlace serve models/ --memory 2GB --log events.log  # for interlace replay
    """
    positive({"--log-limit-mb": log_limit_mb, "--request-memory-mb": request_memory_mb})
    keys = read_keys(api_key_file, admin_key_file, node_key_file)
    options = ServeOptions(
        keys.api, keys.admin, tuple(allow_host or ()), allow_client_shm,
        request_memory_mb, log, log_limit_mb, drain_delay_s, exit_timeout_s, assigned, node, zone,
        keys.node, TlsFiles(tls_cert, tls_key, ca), trust_models, tuple(allow_missing or ()),
        exit_on_error, poll_s, otlp,
    )  # fmt: skip
    _run(log_level, node, interlace.serve(
        models_dir, host=host, port=http_port, grpc_port=grpc_port, metrics_port=metrics_port,
        device=device, gpu=gpu, gpus=gpus, cores=cores, memory_bytes=size_bytes("--memory", memory),
        host_memory_bytes=size_bytes("--host-memory", host_memory), options=options,
        system=_named(system, cold, memory, host_memory), plan=plan, profiles=profiles,
    ))  # fmt: skip


def _run(log_level: LogLevel, node: str, server: interlace.Server) -> None:
    show_logs(out := console(stderr=True), log_level, node)
    with ProgressBar(out) as bar:
        server.run(bar.sweep_step, partial(_ready, bar, out))


def _named(system: str, cold: str | None, memory: str | None, host_memory: str | None) -> str:
    if host_memory is not None and memory is None:
        raise InputError("--host-memory bounds where weights come from: it takes --memory")
    if cold is not None and memory is None:
        raise InputError("--cold says how weights come and go: it takes --memory")
    return system if cold is None else f"{system}/{cold}"


def _ready(bar: ProgressBar, out: Console, models: Sequence[Model], engine: EngineSnapshot) -> None:
    bar.stop()
    show_serving(out, models, engine)
