"""Nodes without GPUs, routers and HAProxy as processes of their own, on ports of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.harness.processes import descendants
from interlace.core.user_errors import UserError

MODELS: Final = Path("examples/fleet")
_INTERLACE: Final = (sys.executable, "-m", "interlace")


@contextmanager
def running(argv: Sequence[str], ready: str, patience_s: float = 60.0) -> Iterator[int]:
    """A process until the block ends, entered once ``ready`` answers 200; its process id.

    Raises:
        UserError: it ended, or was not ready in time.
    """
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ends_s = time.monotonic() + patience_s
        while not _answers(ready):
            if process.poll() is not None or time.monotonic() > ends_s:
                raise UserError(f"{' '.join(argv)}: not ready ({ready})")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def node(port: int, gpus: int = 1) -> tuple[list[str], str]:
    """A node that simulates H100s in real time: its command, and when it is ready."""
    argv = [
        *_INTERLACE, "serve", str(MODELS), "--device", "simulated", "--gpu", "h100",
        "--gpus", str(gpus), "--http-port", str(port), "--grpc-port", str(port + 1),
        "--metrics-port", str(port + 2),
    ]  # fmt: skip
    return argv, f"http://127.0.0.1:{port}/v2/models/tagger/ready"


def router(port: int, nodes: Sequence[int]) -> tuple[list[str], str]:
    """A router of nodes at these ports."""
    addresses = [f"127.0.0.1:{one}" for one in nodes]
    argv = [
        *_INTERLACE, "router", *addresses, "--http-port", str(port), "--grpc-port", str(port + 1)
    ]  # fmt: skip
    return argv, f"http://127.0.0.1:{port}/v2/models/tagger/ready"


def haproxy(port: int, nodes: Sequence[int], folder: Path) -> tuple[list[str], str]:
    """The distribution's HAProxy, on one thread, by least connections.

    Raises:
        UserError: it is not installed.
    """
    program = shutil.which("haproxy")
    if program is None:
        raise UserError("haproxy is not installed (Debian has it: apt-get install haproxy)")
    servers = "\n".join(f"  server n{one} 127.0.0.1:{one}" for one in nodes)
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n"
        "defaults\n  mode http\n  timeout connect 1s\n  timeout client 60s\n  timeout server 60s\n"
        f"frontend all\n  bind 127.0.0.1:{port}\n  default_backend nodes\n"
        f"backend nodes\n  balance leastconn\n  http-reuse always\n{servers}\n"
    )
    return [program, "-db", "-f", str(config)], f"http://127.0.0.1:{port}/v2/models/tagger/ready"


def ray_serve(port: int, python: str) -> tuple[list[str], str]:
    """Ray Serve's proxy and one replica that answers at once, by a Python that has it.

    Raises:
        UserError: that Python does not have it.
    """
    found = subprocess.run([python, "-c", "import ray.serve"], capture_output=True, check=False)
    if found.returncode:
        raise UserError(f"{python} cannot import ray.serve: give a Python with ray[serve]")
    script = str(Path(__file__).with_name("ray_serve.py"))
    return [python, script, str(port)], f"http://127.0.0.1:{port}/v2/models/tagger/ready"


def ray_workers(pid: int) -> list[int]:
    """The processes of Ray Serve that a request goes through."""
    found = []
    for one in descendants([pid]):
        title = Path(f"/proc/{one}/cmdline").read_bytes()
        if title.startswith((b"ray::ProxyActor", b"ray::ServeReplica")):
            found.append(one)
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
