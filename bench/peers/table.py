"""How each server is started and which protocols are measured."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers import models
from bench.peers.models import Sort
from bench.peers.wire import GRPC_PORT, HTTP_PORT, METRICS_PORT

HERE = Path(__file__).resolve().parent
SERVERS = HERE / "servers"
#: The command, in the environment that runs this.
OURS = Path(sys.executable).parent / "interlace"
#: Where `scripts/peers-setup` puts the programs.
PEERS_HOME = Path(os.environ.get("PEERS_HOME") or Path.home() / ".cache" / "interlace-peers")
BOTH = {sort.name: ("http", "grpc") for sort in models.ALIKE}


@dataclass(frozen=True, slots=True)
class Peer:
    """A server: command, working folder, protocols by model, and where its metrics are."""

    command: tuple[str, ...]
    folder: Path
    protocols: Mapping[str, tuple[str, ...]]
    env: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int = METRICS_PORT
    setup: tuple[str, ...] = ()  #: run once before the first start


def ours(home: Path, repository: Path = HERE / "repo", kept: str = "ours-profiles") -> Peer:
    """Interlace itself, from the environment that runs this.

    Its profiles are measured anew by each run of a benchmark: what it believes of the machine is
    then as old as what the others are measured on.
    """
    profiles = home / kept
    ports = ("--http-port", HTTP_PORT, "--grpc-port", GRPC_PORT, "--metrics-port", METRICS_PORT)
    command = (OURS, "serve", repository, *ports, "--profiles", profiles)
    forget = ("rm", "-rf", str(profiles))
    return Peer(tuple(map(str, command)), HERE, BOTH, setup=forget)


def peers(home: Path) -> dict[str, Peer]:
    """Every server by name; ``home`` holds one folder a peer."""
    triton, prepared = (f"{SERVERS}/triton.sh",), (f"{SERVERS}/triton_setup.sh",)
    queue = {"TRITON_REPO": "repo_queue"}
    python = ours(home, home / "triton_run" / "repo", "triton_run/profiles")
    return {
        "ours": ours(home),
        # the files that Triton serves: models of its Python backend
        "ours_python": replace(python, setup=prepared),
        "triton": Peer(triton, home, BOTH, setup=prepared),
        "triton_queue": Peer(triton, home, BOTH, queue, setup=prepared),
        "mosec": mosec(home, models.ALIKE, wait_ms=1, capacity=1024),
    }


def mosec(
    home: Path,
    served: Sequence[Sort],
    *,
    instances: int = 1,
    threads: int = 1,
    wait_ms: int = 0,
    capacity: int = 128,
) -> Peer:
    """mosec with these models, so many instances of each."""
    program = (f"{home}/mosec/bin/python", f"{SERVERS}/mosec_srv.py", "--address", "127.0.0.1")
    options = f"--port {HTTP_PORT} --log-level warning --capacity {capacity} --timeout 30000"
    names = [one.name for one in served]
    env = {
        "MODELS": " ".join(names), "INSTANCES": str(instances), "THREADS": str(threads),
        "WAIT_MS": str(wait_ms),
    }  # fmt: skip
    spoken = dict.fromkeys(names, ("http",))
    return Peer((*program, *options.split()), home, spoken, env, metrics_port=HTTP_PORT)


def installed(home: Path, peer: Peer) -> bool:
    """Whether the program a peer is started with is there."""
    program = Path(peer.command[0])
    needs_triton = program.name == "triton.sh"
    return program.exists() and (not needs_triton or (home / "tritonserver" / ".done").exists())


def prepare(home: Path, peer: Peer) -> None:
    """Run a peer's own preparation, if it has one.

    Raises:
        subprocess.CalledProcessError: it failed; its output is in the message.
    """
    if peer.setup:
        subprocess.run(list(peer.setup), env=environment(home, peer), check=True)


def environment(home: Path, peer: Peer) -> dict[str, str]:
    """The whole environment a peer is started with: one thread a library, no buffering."""
    shared = {
        "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PATH": os.environ["PATH"], "HOME": str(Path.home()), "PEERS_HOME": str(home),
        "HARNESS": str(HERE), "SITE": sysconfig.get_path("purelib"),
        "PYLIB": f"{sys.base_prefix}/lib", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return {**shared, **peer.env}
