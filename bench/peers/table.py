"""How each server is started and which protocols are measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.wire import GRPC_PORT, HTTP_PORT, METRICS_PORT

HERE = Path(__file__).resolve().parent
SERVERS = HERE / "servers"
#: The command, in the environment that runs this.
OURS = Path(sys.executable).parent / "interlace"
DEFAULT_HOME = Path.home() / ".cache" / "interlace-peers"
BOTH = {model: ("http", "grpc") for model in ("echo", "cnn", "img")}
RAW = {model: ("http",) for model in ("echo", "cnn", "img")}
JSON_GRPC = {model: ("json", "grpc") for model in ("echo", "cnn", "img")}
JSON = {model: ("json",) for model in ("echo", "cnn", "img")}


@dataclass(frozen=True, slots=True)
class Peer:
    """A server: command, working folder, protocols by model, and where its metrics are."""

    command: tuple[str, ...]
    folder: Path
    protocols: Mapping[str, tuple[str, ...]]
    env: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int = METRICS_PORT
    setup: tuple[str, ...] = ()  #: run once before the first start


def ours(home: Path) -> Peer:
    """Interlace itself, from the environment that runs this.

    Its profiles are measured anew by each run of a benchmark: what it believes of the machine is
    then as old as what the others are measured on.
    """
    profiles = home / "ours-profiles"
    ports = ("--http-port", HTTP_PORT, "--grpc-port", GRPC_PORT, "--metrics-port", METRICS_PORT)
    command = (OURS, "serve", HERE / "repo", *ports, "--profiles", profiles)
    forget = ("rm", "-rf", str(profiles))
    return Peer(tuple(map(str, command)), HERE, BOTH, setup=forget)


def peers(home: Path) -> dict[str, Peer]:
    """Every server by name; ``home`` holds one folder a peer."""

    def script(venv: str, name: str, *more: str) -> tuple[str, ...]:
        return (f"{home}/{venv}/bin/python", f"{SERVERS}/{name}.py", *more)

    def binary(venv: str) -> Mapping[str, str]:
        return {"PATH": f"{home}/{venv}/bin:{os.environ['PATH']}"}

    library = {"LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    triton_setup = (f"{SERVERS}/triton_setup.sh",)
    mosec: tuple[str, ...] = (
        "--address",
        "127.0.0.1",
        "--port",
        str(HTTP_PORT),
        "--log-level",
        "warning",
    )
    mosec += ("--capacity", "1024", "--timeout", "30000")
    mlserver_setup = script("mlserver", "mlserver_setup")
    bento: tuple[str, ...] = ("serve", "bento_srv:Service", "--working-dir", str(SERVERS))
    bento += ("--host", "127.0.0.1", "--port", str(HTTP_PORT))
    bento_env = {"BENTOML_DO_NOT_TRACK": "True", "PYTHONPATH": f"{HERE}:{SERVERS}"}
    torchserve: tuple[str, ...] = (
        "--start",
        "--foreground",
        "--disable-token-auth",
        "--model-store",
        "store",
    )
    torchserve += ("--ts-config", "config.properties", "--log-config", "log4j2.xml")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    return {
        "ours": ours(home),
        "floor": Peer(
            (sys.executable, f"{SERVERS}/floor.py"), HERE, {"echo": ("http",), "img": ("http",)}
        ),
        "triton": Peer((f"{SERVERS}/triton.sh",), home, BOTH, setup=triton_setup),
        "triton_queue": Peer(
            (f"{SERVERS}/triton.sh",), home, BOTH, {"TRITON_REPO": "repo_queue"}, setup=triton_setup
        ),
        "pytriton": Peer(script("pytriton", "pytriton_srv"), home, BOTH, library),
        "mosec": Peer(script("mosec", "mosec_srv", *mosec), home, RAW, metrics_port=HTTP_PORT),
        "torchserve": Peer(
            (f"{home}/torchserve/bin/torchserve", *torchserve), home / "ts_run", RAW,
            binary("torchserve"), setup=(f"{SERVERS}/torchserve_setup.sh",),
        ),
        "kserve": Peer(script("kserve", "kserve_srv"), home, BOTH, metrics_port=HTTP_PORT),
        "litserve": Peer(script("litserve", "litserve_srv"), home, RAW, metrics_port=HTTP_PORT),
        "mlserver": Peer(
            (f"{home}/mlserver/bin/mlserver", "start", f"{home}/mlserver_run1"), home, JSON_GRPC,
            binary("mlserver"), setup=mlserver_setup,
        ),
        "mlserver0": Peer(
            (f"{home}/mlserver/bin/mlserver", "start", f"{home}/mlserver_run0"), home, JSON_GRPC,
            binary("mlserver"), setup=mlserver_setup,
        ),
        "bentoml": Peer(
            (f"{home}/bentoml/bin/bentoml", *bento), SERVERS, JSON,
            {**binary("bentoml"), **bento_env}, metrics_port=HTTP_PORT,
        ),
        "rayserve": Peer(
            script("rayserve", "rayserve_srv"), home, RAW, {**binary("rayserve"), **quiet},
            metrics_port=HTTP_PORT,
        ),
    }  # fmt: skip


def environment(home: Path, peer: Peer) -> dict[str, str]:
    """The whole environment a peer is started with: one thread a library, no buffering."""
    shared = {
        "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PATH": os.environ["PATH"], "HOME": str(Path.home()), "PEERS_HOME": str(home),
        "HARNESS": str(HERE), "PYLIB": f"{sys.base_prefix}/lib", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return {**shared, **peer.env}
