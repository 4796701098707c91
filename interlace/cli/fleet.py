"""`interlace fleet`: one plan and one address for many nodes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Final

import typer

from interlace.assembly.fleet import FleetSettings, run_fleet
from interlace.assembly.router import RouterSettings
from interlace.cli.fleet_table import FleetWatch, show_fleet, show_planned
from interlace.cli.options import (
    NOT_KEPT,
    CallCa,
    Grace,
    Grpc,
    Host,
    Http,
    Json,
    KeyFile,
    Level,
    NodeCa,
    NodeKeyFile,
    Otlp,
    Price,
    Requests,
    Root,
    SystemName,
    TlsCert,
    TlsKey,
    numbers,
    positive,
    read_key,
    read_keys,
)
from interlace.cli.screen import LogLevel, console, show_logs, watch
from interlace.cli.simulate_fleet import simulate
from interlace.core.rendering import json_text
from interlace.core.user_errors import InputError
from interlace.fleet.kinds import KindPrices
from interlace.fleet.membership import Membership, membership
from interlace.fleet.node_keeper import LocalNodes, NodeLaunch
from interlace.fleet.ray_nodes import RayNodes
from interlace.load.v2_client import V2Client
from interlace.policy.catalog import system_of
from interlace.server.api_keys import ApiKeys
from interlace.server.http.request_head import loopback
from interlace.server.tls import NO_TLS, TlsFiles

_ABOUT: Final = """One plan and one address for many nodes.

\b
Examples:
  interlace serve --assigned --admin-key-file key --host 0.0.0.0  # on each node
  interlace fleet serve models/ --nodes a=10.0.0.7:8000,b=10.0.0.8:8000 --admin-key-file key
  interlace fleet status
  interlace fleet plan --without a --admin-key-file key  # shows changes, makes none
  interlace fleet drain a --admin-key-file key
"""

fleet = typer.Typer(help=_ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
fleet.command()(simulate)

Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODES",
        help="Nodes, each as [NAME=]HOST:PORT of HTTP; or all of a DNS name: dns:NAME:PORT.",
    ),
]
AskedKeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the key that callers must send; it is sent to nodes, too."),
]
_Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="NODES",
        help="Nodes, each as [NAME=]HOST:PORT of its HTTP port, with commas; or all of a DNS name: "
        "dns:NAME:PORT.",
    ),
]
_Ray = Annotated[
    str | None,
    typer.Option(
        metavar="auto|ADDRESS",
        help="Instead of --nodes: start a node on each GPU machine of this Ray cluster.",
    ),
]
_Local = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Instead of --nodes: start N nodes on this machine, which end with this command.",
    ),
]
_NodeOptions = Annotated[
    str,
    typer.Option(
        metavar="OPTIONS", help="With --ray and --local: options of each interlace serve."
    ),
]
_Most = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --ray: let its autoscaler start up to N machines under load, and stop them.  "
        "[default: no autoscaling]",
    ),
]
_AdminFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the key for calls that change the fleet; sent to nodes unless there is a "
        "node key."
    ),
]
_Lease = Annotated[
    Path | None,
    typer.Option(help="A folder that all controllers share: one is active, the others stand by."),
]

_Url = Annotated[str, typer.Argument(help="Address of the fleet's controller.")]
_Key = Annotated[Path | None, typer.Option(help="File with the admin key to send.")]
_Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node in the fleet.")]
_HERE: Final = "http://127.0.0.1:8000"


@fleet.command()
def serve(
    models_dir: Root,
    nodes: _Nodes = None,
    ray: _Ray = None,
    local: _Local = None,
    node_options: _NodeOptions = "",
    max_machines: _Most = None,
    price: Price = None,
    host: Host = "127.0.0.1",
    http_port: Http = 8000,
    grpc_port: Grpc = 8001,
    system: SystemName = "interlace",
    lease: _Lease = None,
    api_key_file: AskedKeyFile = None,
    admin_key_file: _AdminFile = None,
    node_key_file: NodeKeyFile = None,
    tls_cert: TlsCert = None, tls_key: TlsKey = None, ca: NodeCa = None,
    request_memory_mb: Requests = 1024.0,
    exit_timeout_s: Grace = 30.0, otlp: Otlp = "",
    log_level: Level = LogLevel.INFO,
) -> None:  # fmt: skip
    """Plan for all nodes, assign models to each, and route requests to them.

    The fleet serves the models of MODELS_DIR and follows changes there. Nodes (interlace serve
    --assigned) fetch models from this controller; a node with a folder of its own needs the same
    files. Models of a lost node are reassigned at once. Nodes keep serving without a controller.

    \b
    Examples:
      interlace fleet serve models/ --local 3 --node-options="--device simulated --gpu h100"
      interlace fleet serve models/ --nodes 10.0.0.7:8000,10.0.0.8:8000 --node-key-file key
      interlace fleet serve models/ --nodes a=...,b=... --price h100=4 --price l4=0.8
      interlace fleet serve models/ --nodes dns:interlace-nodes.default.svc:8000
      interlace fleet serve /mnt/models --ray auto --max-machines 10 --node-key-file key
    """
    positive({"--request-memory-mb": request_memory_mb})
    show_logs(out := console(stderr=True), log_level)
    keys = _with_admin(read_keys(api_key_file, admin_key_file, node_key_file), local)
    tls = TlsFiles(tls_cert, tls_key, ca)
    launch = _launch(models_dir, node_options, keys, tls if nodes is None else NO_TLS)
    found = _found(nodes, ray, local, launch, max_machines)
    prices = KindPrices(numbers("--price", price or []))
    router = RouterSettings(
        found, host, http_port, grpc_port, keys, int(request_memory_mb * (1 << 20)),
        exit_timeout_s=exit_timeout_s, tls=tls, otlp=otlp,
    )  # fmt: skip
    run_fleet(
        FleetSettings(router, models_dir, system_of(system), lease, prices),
        lambda http, grpc: out.print(f"a fleet of {found}: HTTP {host}:{http}, gRPC {host}:{grpc}"),
    )


def _with_admin(keys: ApiKeys, local: int | None) -> ApiKeys:
    if not local or keys.admin:
        return keys
    return replace(keys, admin=token_hex())  # nodes of our own: nobody else has to know it


def _launch(models: Path, options: str, keys: ApiKeys, tls: TlsFiles) -> NodeLaunch:
    if (tls.cert is None) != (tls.ca is None):
        raise InputError(
            "nodes that are started from here speak TLS as it does, and fetch models from it: "
            "give --tls-cert and --tls-key, and --ca that signed them, or none of them"
        )
    files = {"--tls-cert": tls.cert, "--tls-key": tls.key, "--ca": tls.ca}
    words = [f"{option}={file.resolve()}" for option, file in files.items() if file is not None]
    words += shlex.split(options)  # the last word on each option is theirs
    return NodeLaunch(str(models.resolve()), tuple(words), keys.admin, keys.api, keys.node)


def _found(
    nodes: str | None,
    ray: str | None,
    local: int | None,
    launch: NodeLaunch,
    most_machines: int | None,
) -> Membership:
    """The nodes of the fleet, from one of three options.

    Raises:
        InputError: several are given, or none, or the value is no node and no cluster.
    """
    positive({"--max-machines": most_machines, "--local": local})
    if sum(one is not None for one in (nodes, ray, local)) != 1:
        raise InputError(
            "no nodes given, or in several ways: use one of --nodes, --ray and --local"
        )
    if ray is not None:
        return RayNodes(ray, launch, most_machines)
    if most_machines is not None:
        raise InputError("--max-machines: only Ray's autoscaler brings machines: give --ray auto")
    if local is not None:
        return LocalNodes(local, launch)
    return membership((nodes or "").split(","))


@fleet.command()
def status(
    url: _Url = _HERE,
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    as_json: Json = False,
) -> None:
    """Show each node: its assignment, its state and its problems.

    \b
    Examples:
      interlace fleet status
      interlace fleet status http://10.0.0.5:8000 --json
    """
    text = V2Client(url, read_key(api_key_file), ca=ca).text("/v2/fleet")
    if as_json:
        typer.echo(text)
    else:
        show_fleet(console(), text)


@fleet.command()
def top(
    url: _Url = _HERE,
    interval: Annotated[float, typer.Option(help="Seconds between frames.")] = 1.0,
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of one interval, and exit.")
    ] = False,
) -> None:
    """Watch a fleet: the state of each node; requests, queue and latency of each model.

    \b
    Examples:
      interlace fleet top
      interlace fleet top http://10.0.0.5:8000 --interval 2
      interlace fleet top --once
    """
    positive({"--interval": interval})
    client = V2Client(url, read_key(api_key_file), ca=ca)
    seen = FleetWatch(lambda: client.text("/v2/fleet"))
    watch(console(), seen.look, interval, once)


@fleet.command()
def plan(
    url: _Url = _HERE,
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RPS", help="Requests per second of a model to plan for."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Plan without this node.")
    ] = None,
    admin_key_file: _Key = None,
    ca: CallCa = None,
    as_json: Json = False,
) -> None:
    """Show what the controller would change on each node now; nothing is changed.

    The plan starts from the running one, for the current rates or for those given here. It shows
    partitions kept and moved, models loaded, models not served and why, and the headroom. Exit
    code 3: a model is not served.

    \b
    Examples:
      interlace fleet plan --admin-key-file key
      interlace fleet plan --without a --admin-key-file key              # before draining it
      interlace fleet plan --rate bert=900 --rate tagger=400 --admin-key-file key
    """
    asked = {"rates": numbers("--rate", rate or []), "without": without or []}
    client = _commanding(url, admin_key_file, ca)
    found = client.post("/v2/fleet/plan", asked)
    if as_json:
        typer.echo(json_text(found))
    else:
        show_planned(console(), found)
    if found["unserved_rows_per_s"] or found["failure"]:
        raise typer.Exit(NOT_KEPT)


@fleet.command()
def drain(node: _Node, url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """Empty a node: its models are loaded elsewhere, then it gets no more requests.

    It answers accepted requests. Stop it when interlace fleet status shows "drained".

    \b
    Examples:
      interlace fleet drain a --admin-key-file key
      interlace fleet drain a http://10.0.0.5:8000 --admin-key-file key
      interlace fleet undrain a --admin-key-file key  # use it again
    """
    _order(url, admin_key_file, ca, "drain", node)


@fleet.command()
def undrain(node: _Node, url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """Use a drained node again.

    \b
    Examples:
      interlace fleet undrain a --admin-key-file key
    """
    _order(url, admin_key_file, ca, "undrain", node)


@fleet.command()
def add(
    node: Annotated[
        str, typer.Argument(metavar="NAME=HOST:PORT", help="The node's name and address.")
    ],
    url: _Url = _HERE,
    admin_key_file: _Key = None,
    ca: CallCa = None,
) -> None:
    """Add a node: until this controller ends, or for good if it has a --lease.

    \b
    Examples:
      interlace fleet add c=10.0.0.9:8000 --admin-key-file key
    """
    _order(url, admin_key_file, ca, "add", node)


@fleet.command()
def remove(node: _Node, url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """Remove a node from the controller's list; its models are loaded elsewhere.

    Drain it first, so that they are loaded before. The node keeps serving its assignment. A
    separate router keeps the nodes it was started with: restart it with the new list, or use dns:.

    \b
    Examples:
      interlace fleet remove c --admin-key-file key
    """
    _order(url, admin_key_file, ca, "remove", node)


@fleet.command()
def down(url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """End a fleet: nodes answer accepted requests and unload; the controller exits.

    The nodes then wait for another controller. Nodes that were started through Ray end.

    \b
    Examples:
      interlace fleet down --admin-key-file key
    """
    _order(url, admin_key_file, ca, "down")


def _order(url: str, key_file: Path | None, ca: Path | None, what: str, node: str = "") -> None:
    client = _commanding(url, key_file, ca)
    typer.echo(client.post(f"/v2/fleet/{what}", {"node": node} if node else {})["done"])


def _commanding(url: str, key_file: Path | None, ca: Path | None) -> V2Client:
    """A client that sends the admin key, which every order asks for."""
    option = "--admin-key-file"
    client = V2Client(url, read_key(key_file, option), option, ca)
    if key_file is not None and client.tls is None and not loopback(client.host):
        typer.echo(
            f"warning: the admin key goes in clear text to {client.host}: give --ca", err=True
        )
    return client
