"""How each server is started and which protocols are measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    return {"ours": ours(home), **_compiled(home), **_python(home)}


def _compiled(home: Path) -> dict[str, Peer]:
    """Servers whose front is C++, Rust or Java, and the floor."""
    triton, prepared = (f"{SERVERS}/triton.sh",), (f"{SERVERS}/triton_setup.sh",)
    library = {"LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    queue = {"TRITON_REPO": "repo_queue"}
    floor = {"echo": ("http",), "img": ("http",)}
    mosec = f"--address 127.0.0.1 --port {HTTP_PORT} --log-level warning".split()
    mosec += ["--capacity", "1024", "--timeout", "30000"]
    java = ["--start", "--foreground", "--disable-token-auth", "--model-store", "store"]
    java += ["--ts-config", "config.properties", "--log-config", "log4j2.xml"]
    return {
        "floor": Peer((sys.executable, f"{SERVERS}/floor.py"), HERE, floor),
        "triton": Peer(triton, home, BOTH, setup=prepared),
        "triton_queue": Peer(triton, home, BOTH, queue, setup=prepared),
        "pytriton": Peer(_script(home, "pytriton", "pytriton_srv"), home, BOTH, library),
        "mosec": Peer(
            _script(home, "mosec", "mosec_srv", *mosec), home, RAW, metrics_port=HTTP_PORT
        ),
        "torchserve": Peer(
            (f"{home}/torchserve/bin/torchserve", *java), home / "ts_run", RAW,
            _path(home, "torchserve"), setup=(f"{SERVERS}/torchserve_setup.sh",),
        ),
    }  # fmt: skip


def _python(home: Path) -> dict[str, Peer]:
    """Servers whose front is Python."""
    mlserver = f"{home}/mlserver/bin/mlserver"
    prepared = _script(home, "mlserver", "mlserver_setup")
    bento = f"serve bento_srv:Service --working-dir {SERVERS}".split()
    bento += f"--host 127.0.0.1 --port {HTTP_PORT}".split()
    bento_env = {"BENTOML_DO_NOT_TRACK": "True", "PYTHONPATH": f"{HERE}:{SERVERS}"}
    ray = {**_path(home, "rayserve"), "RAY_USAGE_STATS_ENABLED": "0"}
    found = {
        "kserve": Peer(_script(home, "kserve", "kserve_srv"), home, BOTH),
        "litserve": Peer(_script(home, "litserve", "litserve_srv"), home, RAW),
        "bentoml": Peer(
            (f"{home}/bentoml/bin/bentoml", *bento), SERVERS, JSON,
            {**_path(home, "bentoml"), **bento_env},
        ),
        "rayserve": Peer(_script(home, "rayserve", "rayserve_srv"), home, RAW, ray),
    }  # fmt: skip
    found = {name: replace(peer, metrics_port=HTTP_PORT) for name, peer in found.items()}
    for workers, name in enumerate(("mlserver0", "mlserver")):
        command = (mlserver, "start", f"{home}/mlserver_run{workers}")
        found[name] = Peer(command, home, JSON_GRPC, _path(home, "mlserver"), setup=prepared)
    return found


def _script(home: Path, venv: str, name: str, *more: str) -> tuple[str, ...]:
    return (f"{home}/{venv}/bin/python", f"{SERVERS}/{name}.py", *more)


def _path(home: Path, venv: str) -> Mapping[str, str]:
    return {"PATH": f"{home}/{venv}/bin:{os.environ['PATH']}"}


def environment(home: Path, peer: Peer) -> dict[str, str]:
    """The whole environment a peer is started with: one thread a library, no buffering."""
    shared = {
        "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PATH": os.environ["PATH"], "HOME": str(Path.home()), "PEERS_HOME": str(home),
        "HARNESS": str(HERE), "PYLIB": f"{sys.base_prefix}/lib", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return {**shared, **peer.env}
