"""`interlace router`: one address for many nodes."""

from __future__ import annotations

from interlace.assembly.router import RouterSettings, run_router
from interlace.cli.fleet import AskedKeyFile, Nodes
from interlace.cli.options import (
    Grace,
    Grpc,
    Host,
    Http,
    Level,
    NodeCa,
    Otlp,
    Requests,
    TlsCert,
    TlsKey,
    positive,
    read_key,
)
from interlace.cli.screen import LogLevel, console, show_logs
from interlace.fleet.membership import membership
from interlace.server.api_keys import ApiKeys
from interlace.server.tls import TlsFiles


def router(
    nodes: Nodes,
    host: Host = "127.0.0.1",
    http_port: Http = 8000,
    grpc_port: Grpc = 8001,
    api_key_file: AskedKeyFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    ca: NodeCa = None,
    request_memory_mb: Requests = 1024.0,
    exit_timeout_s: Grace = 30.0,
    otlp: Otlp = "",
    log_level: Level = LogLevel.INFO,
) -> None:
    """One address for many nodes: a request goes to the one that can answer first.

    Nodes are servers (interlace serve) and report their load 50 times a second. A request that one
    refuses or does not answer is retried at another while time is left. A router has no state: run
    as many as you like.

    \b
    Examples:
      interlace router 10.0.0.7:8000 10.0.0.8:8000 --host 0.0.0.0
      interlace router a=10.0.0.7:8000 b=10.0.0.8:8000
      interlace router dns:interlace-nodes.default.svc:8000
      interlace router a=gpu-a:8000 --tls-cert tls.crt --tls-key tls.key --ca ca.crt
    """
    positive({"--request-memory-mb": request_memory_mb})
    found = membership(nodes)
    show_logs(out := console(stderr=True), log_level)
    settings = RouterSettings(
        found, host, http_port, grpc_port, ApiKeys(read_key(api_key_file) or ""),
        int(request_memory_mb * (1 << 20)), exit_timeout_s=exit_timeout_s,
        tls=TlsFiles(tls_cert, tls_key, ca), otlp=otlp,
    )  # fmt: skip
    run_router(
        settings, lambda http, grpc: out.print(f"{found}: HTTP {host}:{http}, gRPC {host}:{grpc}")
    )
