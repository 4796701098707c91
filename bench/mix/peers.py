"""Who is compared on the mix, how each is started, and what a request looks like on its wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.mix import models
from bench.peers.table import OURS, SERVERS, Peer
from bench.peers.wire import GRPC_PORT, HTTP_PORT, METRICS_PORT, OCTETS
from interlace.load.call import Call

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Tuning:
    """Instances a model, threads an instance, and how Triton queues.

    ``queue_share`` is the part of its SLO that a request may wait; ``limited`` has Triton's rate
    limiter run no more models at once than there are cores.
    """

    instances: int
    threads: int
    queue_share: float = 0.5
    limited: bool = False


#: A peer's name is its program and its tuning: the best one is reported.
TUNINGS = {
    "1x1": Tuning(1, 1),
    "2x1": Tuning(2, 1),
    "1x2": Tuning(1, 2),
    "1x1r": Tuning(1, 1, limited=True),
    "2x1r": Tuning(2, 1, limited=True),
    "1x1r7": Tuning(1, 1, 0.7, limited=True),
}
NAMES = ("ours", "triton-1x1", "triton-2x1", "triton-2x1r", "mosec-1x1")
CORES = 2


def peer(name: str, home: Path) -> Peer:
    """A server by name, its repository written if it needs one."""
    if name == "ours":
        ports = ("--http-port", HTTP_PORT, "--grpc-port", GRPC_PORT, "--metrics-port", METRICS_PORT)
        profiles = home / "ours-mix-profiles"
        serve = (OURS, "serve", models.REPO, *ports, "--profiles", profiles)
        forget = ("rm", "-rf", str(profiles))
        return Peer(tuple(map(str, serve)), HERE, {}, setup=forget)
    program, tuning = name.split("-")
    how = TUNINGS[tuning]
    env = {"OMP_NUM_THREADS": str(how.threads), "MKL_NUM_THREADS": str(how.threads)}
    if program == "triton":
        _write_triton(home, name, how)
        limit = ("--rate-limit=execution_count", f"--rate-limit-resource=core:{CORES}")
        start = (f"{SERVERS}/triton.sh", *(limit if how.limited else ()))
        return Peer(start, home, {}, {**env, "TRITON_REPO": f"mix-{name}"})
    given = {"MIX_THREADS": str(how.threads), "MIX_INSTANCES": str(how.instances)}
    command = (f"{home}/mosec/bin/python", f"{HERE}/mosec_srv.py", "--address", "127.0.0.1")
    more = (
        "--port",
        str(HTTP_PORT),
        "--capacity",
        "128",
        "--timeout",
        "30000",
        "--log-level",
        "warning",
    )
    return Peer((*command, *more), HERE, {}, {**env, **given, "PYTHONPATH": str(HERE)})


def _write_triton(home: Path, name: str, how: Tuning) -> None:
    (site,) = (home / "pytriton" / "lib").glob("python3.*/site-packages")
    target = home / "triton_run" / f"mix-{name}"
    target.parent.mkdir(exist_ok=True)
    more = {"--site": site, "--instances": how.instances, "--threads": how.threads,
            "--queue-share": how.queue_share}  # fmt: skip
    limited = ["--limited"] if how.limited else []
    flags = [str(word) for pair in more.items() for word in pair]
    command = [sys.executable, str(HERE / "triton_repository.py"), str(target), *flags, *limited]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(HERE)})


def request(name: str, sort: models.Sort) -> Call:
    """One request of a model: v2 binary for ours and Triton, the bytes alone for mosec."""
    arrays = models.sample(sort)
    raw = b"".join(array.tobytes() for array in arrays)
    if name.startswith("mosec"):
        return Call("http", HTTP_PORT, f"/{sort.name}", raw, OCTETS)
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": list(a.shape),
         "parameters": {"binary_data_size": a.nbytes}}
        for t, a in zip(sort.inputs, arrays, strict=True)
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {**OCTETS, "Inference-Header-Content-Length": str(len(head))}
    return Call("http", HTTP_PORT, f"/v2/models/{sort.name}/infer", head + raw, headers)
