"""`interlace router`: one address for many nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlace.assembly.router import RouterSettings, run_router
from interlace.cli.fleet import Nodes, named_nodes
from interlace.cli.logs import LogLevel, show_logs
from interlace.cli.options import positive, read_key
from interlace.cli.screen import console
from interlace.server.api_keys import ApiKeys

_Host = Annotated[str, typer.Option(help="Where to listen; loopback only by default.")]
_Http = Annotated[int, typer.Option(help="KServe v2 over HTTP.")]
_Grpc = Annotated[int, typer.Option(help="KServe v2 over gRPC.")]
_KeyFile = Annotated[
    Path | None, typer.Option(help="The key in this file is asked of callers, and shown to nodes.")
]
_Requests = Annotated[
    float, typer.Option(metavar="MB", help="Most memory for the bodies of requests.")
]
_Grace = Annotated[float, typer.Option(help="How long SIGTERM waits for accepted requests.")]
_LogLevel = Annotated[LogLevel, typer.Option(help="From which level on messages are shown.")]


def router(
    nodes: Nodes,
    host: _Host = "127.0.0.1",
    http_port: _Http = 8000,
    grpc_port: _Grpc = 8001,
    api_key_file: _KeyFile = None,
    request_memory_mb: _Requests = 1024.0,
    exit_timeout_s: _Grace = 30.0,
    log_level: _LogLevel = LogLevel.INFO,
) -> None:
    """One address for many nodes: requests go to the one that answers first.

    Nodes are servers (interlace serve). They say how busy they are 50 times a second; what one
    refuses or does not answer is tried at another while time is left. A router keeps nothing: run
    as many as you like.

    \b
    Examples:
      interlace router 10.0.0.7:8000 10.0.0.8:8000 --host 0.0.0.0
      interlace router a=10.0.0.7:8000/rack-1 b=10.0.0.8:8000/rack-2
    """
    positive({"--request-memory-mb": request_memory_mb})
    found = named_nodes(nodes)
    show_logs(out := console(stderr=True), log_level)
    settings = RouterSettings(
        found, host, http_port, grpc_port, ApiKeys(read_key(api_key_file) or ""),
        int(request_memory_mb * (1 << 20)), exit_timeout_s=exit_timeout_s,
    )  # fmt: skip
    run_router(
        settings,
        lambda http, grpc: out.print(f"{len(found)} nodes: HTTP {host}:{http}, gRPC {host}:{grpc}"),
    )
