"""Who is compared on the mix, how each is started, and what a request looks like on its wire."""

import json
from pathlib import Path

from bench.mix import models
from bench.mix.triton_repository import Tuning, write
from bench.peers.table import SERVERS, Peer, ours
from bench.peers.wire import HTTP_PORT, OCTETS
from interlace.load.call import Call

HERE = Path(__file__).resolve().parent


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
        return ours(home, models.REPO, "ours-mix-profiles")
    program, tuning = name.split("-")
    how = TUNINGS[tuning]
    env = {"OMP_NUM_THREADS": str(how.threads), "MKL_NUM_THREADS": str(how.threads)}
    if program == "triton":
        (site,) = (home / "pytriton" / "lib").glob("python3.*/site-packages")
        (home / "triton_run").mkdir(exist_ok=True)
        write(home / "triton_run" / f"mix-{name}", site, how)
        limit = ("--rate-limit=execution_count", f"--rate-limit-resource=core:{CORES}")
        start = (f"{SERVERS}/triton.sh", *(limit if how.limited else ()))
        return Peer(start, home, {}, {**env, "TRITON_REPO": f"mix-{name}"})
    given = {"MIX_THREADS": str(how.threads), "MIX_INSTANCES": str(how.instances)}
    command = (f"{home}/mosec/bin/python", f"{HERE}/mosec_srv.py", "--address", "127.0.0.1")
    more = f"--port {HTTP_PORT} --capacity 128 --timeout 30000 --log-level warning".split()
    return Peer((*command, *more), HERE, {}, {**env, **given, "PYTHONPATH": str(HERE)})


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
