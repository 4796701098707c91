"""Where other people's programs lie, and how a server is started and stopped."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.fleet import stand
from tests.serve.server import Server

HOME = Path(os.environ.get("PEERS_HOME", Path.home() / ".cache" / "interlace-peers"))
TRITON = HOME / "tritonserver" / "pytriton" / "tritonserver"
TRITON_NUMPY = HOME / "tritonserver" / "numpy1"
PERF_ANALYZER = HOME / "perf" / "perf_analyzer"
HOW = "run scripts/peers-setup --tests"


class Running(NamedTuple):
    """A server that answers: its ports, its process, the file it logs to."""

    http_port: int
    grpc_port: int
    metrics_port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    first = stand.free_ports(count)
    return list(range(first, first + count))


def triton_command(repository: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the real server on a repository."""
    http_port, grpc_port, metrics_port = map(str, ports)
    command = [
        str(TRITON / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={TRITON / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={http_port}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc_port}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        "--model-control-mode=explicit",
        "--load-model=*",
    ]
    top = HOME / "tritonserver"
    libraries = f"{(top / 'pylib').read_text().strip()}:{top / 'nvidia_pytriton.libs'}"
    return command, {**os.environ, "LD_LIBRARY_PATH": libraries}


def ours_command(repository: Path, ports: Sequence[int], *more: str) -> list[str]:
    """Command of ``interlace serve`` on a repository; it measures as quickly as other tests' do."""
    http_port, grpc_port, metrics_port = map(str, ports)
    command = [sys.executable, "-c", Server.code, "serve", str(repository)]
    command += ["--http-port", http_port, "--grpc-port", grpc_port]
    return [*command, "--metrics-port", metrics_port, *more]


@contextmanager
def running(
    command: Sequence[str], ports: Sequence[int], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """A server from ready until stopped; its whole process group is gone at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=env,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    server = Running(*ports, process, log)
    try:
        _wait_ready(server)
        yield server
    finally:
        _stop(process)


def _wait_ready(server: Running, limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end and server.process.poll() is None:
        if _ready(server.http_port):
            return
        time.sleep(0.1)
    tail = server.log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"not ready (exit code {server.process.poll()}): {tail}")


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)
