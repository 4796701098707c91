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
from interlace.cli.fleet_table import show_fleet, show_planned
from interlace.cli.fleet_top import FleetWatch
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
from interlace.core.json_text import json_text
from interlace.core.user_errors import InputError
from interlace.fleet.local_nodes import LocalNodes
from interlace.fleet.membership import Membership, membership
from interlace.fleet.node_keeper import NodeLaunch
from interlace.fleet.prices import KindPrices
from interlace.fleet.ray_nodes import RayNodes
from interlace.load.v2_client import V2Client
from interlace.planning.systems import system_of
from interlace.server.api_keys import ApiKeys
from interlace.server.http.origins import loopback
from interlace.server.tls import NO_TLS, TlsFiles

_ABOUT: Final = """One plan and one address for many nodes.

\b
Examples:
  interlace serve --assigned --admin-key-file key --host 0.0.0.0  # on each node
  interlace fleet serve models/ --nodes a=10.0.0.7:8000,b=10.0.0.8:8000 --admin-key-file key
  interlace fleet status
  interlace fleet plan --without a --admin-key-file key  # what would be done; nothing is
  interlace fleet drain a --admin-key-file key
"""

fleet = typer.Typer(help=_ABOUT, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
fleet.command()(simulate)

Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODES",
        help="Nodes, each as [NAME=]HOST:PORT of its HTTP, or all of a DNS name: dns:NAME:PORT.",
    ),
]
AskedKeyFile = Annotated[
    Path | None, typer.Option(help="The key in this file is asked of callers, and shown to nodes.")
]
_Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="NODES",
        help="Nodes, each as [NAME=]HOST:PORT of its HTTP, with commas between them; or all of a "
        "DNS name: dns:NAME:PORT.",
    ),
]
_Ray = Annotated[
    str | None,
    typer.Option(
        metavar="auto|ADDRESS",
        help="Instead of --nodes: start a node on each machine with GPUs of this Ray cluster.",
    ),
]
_Local = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Instead of --nodes: start N nodes on this machine; they end with this command.",
    ),
]
_NodeOptions = Annotated[
    str,
    typer.Option(
        metavar="OPTIONS", help="With --ray and --local: options for each interlace serve."
    ),
]
_Most = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With --ray: have its autoscaler bring up to N machines under load, and take them "
        "away again; without, those that there are.",
    ),
]
_AdminFile = Annotated[
    Path | None,
    typer.Option(
        help="This fleet asks for the key in this file where it is told something; without a node "
        "key it is shown to nodes."
    ),
]
_Lease = Annotated[
    Path | None,
    typer.Option(help="A folder that all controllers reach: one commands, the others wait."),
]


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
    exit_timeout_s: Grace = 30.0,
    log_level: Level = LogLevel.INFO,
) -> None:  # fmt: skip
    """Plan for all nodes, tell each its part, and pass requests to them.

    MODELS_DIR holds what the fleet is to serve; what changes there is taken up. Nodes are servers
    that wait to be told (interlace serve --assigned), and fetch models from here; those that are
    started with a folder of models have to have the same files. What a node that is lost served
    stands elsewhere at once; without this command nodes go on with what they were told.

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
    router = RouterSettings(
        found, host, http_port, grpc_port, keys, int(request_memory_mb * (1 << 20)),
        exit_timeout_s=exit_timeout_s, tls=tls,
    )  # fmt: skip
    run_fleet(
        FleetSettings(router, models_dir, system_of(system), lease, _prices(price)),
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


def _prices(texts: list[str] | None) -> KindPrices:
    return KindPrices(numbers("--price", texts or []))


def _found(
    nodes: str | None,
    ray: str | None,
    local: int | None,
    launch: NodeLaunch,
    most_machines: int | None,
) -> Membership:
    """Who is there, as one of three options says.

    Raises:
        InputError: several do, or none, or what is named is no node and no cluster.
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
    url: Annotated[str, typer.Argument(help="Where a fleet is served.")] = "http://127.0.0.1:8000",
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    as_json: Json = False,
) -> None:
    """Show each node: what it is told to serve, whether it does, and what is wrong with it.

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
    url: Annotated[str, typer.Argument(help="Where a fleet is served.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(help="Seconds between frames.")] = 1.0,
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of one interval, and end.")
    ] = False,
) -> None:
    """Watch a fleet: what each node does, and the requests, queue and next answer of each model.

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


_Url = Annotated[
    str, typer.Option(metavar="URL", help="Where the fleet's controller is reached over HTTP.")
]
_Key = Annotated[Path | None, typer.Option(help="Send the key in this file with the order.")]
_Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name in the fleet.")]
_HERE: Final = "http://127.0.0.1:8000"


@fleet.command()
def plan(
    url: _Url = _HERE,
    rate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RPS", help="Plan for other requests/s of a model."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Plan as if this node were not there.")
    ] = None,
    admin_key_file: _Key = None,
    ca: CallCa = None,
    as_json: Json = False,
) -> None:
    """Show what would be planned now, and change nothing: what comes and goes on each node.

    The controller plans for the rates that it sees, or for those given here, from what stands. It
    says how many partitions stay and move, how many models are loaded anew, what is not served and
    why, and by how much rates may grow. It ends with 3 if something is not served.

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
    """Empty a node: its models stand elsewhere first, then it takes nothing.

    It answers what it has, and may be ended once `interlace fleet status` says "drained".

    \b
    Examples:
      interlace fleet drain a --admin-key-file key
      interlace fleet undrain a --admin-key-file key  # have it serve again
    """
    _order(url, admin_key_file, ca, "drain", node)


@fleet.command()
def undrain(node: _Node, url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """Plan for a drained node again.

    \b
    Examples:
      interlace fleet undrain a --admin-key-file key
    """
    _order(url, admin_key_file, ca, "undrain", node)


@fleet.command()
def add(
    node: Annotated[str, typer.Argument(metavar="NAME=HOST:PORT", help="Where it listens.")],
    url: _Url = _HERE,
    admin_key_file: _Key = None,
    ca: CallCa = None,
) -> None:
    """Have one more node: until this controller ends, or for good where it has a --lease.

    \b
    Examples:
      interlace fleet add c=10.0.0.9:8000 --admin-key-file key
    """
    _order(url, admin_key_file, ca, "add", node)


@fleet.command()
def remove(node: _Node, url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """Have one node less: it is asked no more, and its models stand elsewhere.

    Drain it first, so that they stand there before. It goes on with what it was told.

    \b
    Examples:
      interlace fleet remove c --admin-key-file key
    """
    _order(url, admin_key_file, ca, "remove", node)


@fleet.command()
def down(url: _Url = _HERE, admin_key_file: _Key = None, ca: CallCa = None) -> None:
    """End a fleet: every node serves what it has, then nothing; the controller ends.

    Nodes wait to be told by another controller; those that Ray's actors keep end, and the actors.

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
