"""Python backend models in Interlace and in the real Triton: the same files, one after the other.

    python -m bench.python_backend [ROUNDS]

Needs what scripts/peers-setup puts in place. ``echo`` returns its input, ``image`` makes a
normalised tensor of a picture. ``cpu_us`` is the processor time of all processes of a server for
one request: on a machine that does other things, it is what two runs can be compared by.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from bench.harness import processes
from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures
from bench.harness.spread import spread
from bench.peers.once import get
from bench.peers.table import PEERS_HOME, Peer, environment, ours, peers, prepare
from bench.peers.wire import HTTP_PORT, v2_http

_CODE: Final = """
import sys
sys.path.append({numpy!r})
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.run(
                pb_utils.get_input_tensor_by_name(request, "INPUT")))])
            for request in requests
        ]

    def run(self, tensor):
{body}
"""
_IMAGE: Final = """
        pixels = tensor.as_numpy() / np.float32(255) - np.float32(0.5)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
"""
#: Code and dims of each model's input and output.
_MODELS: Final = {
    "echo": ("        return tensor.as_numpy()", (16,), (16,)),
    "image": (_IMAGE, (224, 224, 3), (3, 224, 224)),
}
_CONFIG: Final = """backend: "python"
max_batch_size: 8
input {{ name: "INPUT" data_type: TYPE_FP32 dims: {given} }}
output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: {made} }}
parameters {{ key: "slo_ms" value: {{ string_value: "2000" }} }}
"""
_CONNECTIONS: Final = (1, 8)
_SECONDS: Final = 4.0
_START_S: Final = 120.0


def main(rounds: int) -> None:
    """Print throughput and p50 of both, and their ratios, over some rounds."""
    with tempfile.TemporaryDirectory() as folder:
        repository = _write(Path(folder))
        triton = peers(PEERS_HOME)["triton"]
        triton = Peer(triton.command, triton.folder, {}, {"TRITON_REPO": str(repository)})
        servers = {"ours": ours(PEERS_HOME, repository, "python-profiles"), "triton": triton}
        prepare(PEERS_HOME, servers["ours"])
        found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
        for _ in range(rounds):
            for name, peer in servers.items():
                with _running(peer, Path(folder) / f"{name}.log") as pid:
                    for model in _MODELS:
                        for connections in _CONNECTIONS:
                            one = _measure(model, connections, pid)
                            found.setdefault((model, name, connections), []).append(one)
    for model in _MODELS:
        for connections in _CONNECTIONS:
            _show(model, connections, found)


def _measure(model: str, connections: int, pid: int) -> dict[str, float]:
    call, before_s = v2_http(model, np.ones(_MODELS[model][1], np.float32)).encoded(), list[float]()
    pids = [pid, *processes.descendants([pid])]
    run = closed_loop(
        call, connections, _SECONDS, on_measure=lambda: before_s.append(processes.cpu_s(pids))
    )
    used_s, found = processes.cpu_s(pids) - before_s[0], figures(run)
    return {**found, "cpu_us": 1e6 * used_s / found["calls"]}


def _show(
    model: str, connections: int, found: dict[tuple[str, str, int], list[dict[str, float]]]
) -> None:
    pairs = list(
        zip(found[model, "ours", connections], found[model, "triton", connections], strict=True)
    )
    print(f"{model}, {connections} connections")
    for figure in ("rps", "p50_ms", "cpu_us"):
        ours_, theirs = ([one[figure] for one in side] for side in zip(*pairs, strict=True))
        ratio = spread([a / b for a, b in zip(ours_, theirs, strict=True)])
        texts = [one.text() for side in (ours_, theirs) if (one := spread(side))]
        print(f"  {figure}: ours {texts[0]}, triton {texts[1]}, ratio {ratio and ratio.text()}")


def _write(root: Path) -> Path:
    numpy = str(PEERS_HOME / "tritonserver" / "numpy1")
    repository = root / "models"
    for name, (body, given, made) in _MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        code = _CODE.format(numpy=numpy, body=body)
        (repository / name / "1" / "model.py").write_text(code)
        config = _CONFIG.format(given=list(given), made=list(made))
        (repository / name / "config.pbtxt").write_text(config)
    return repository


@contextmanager
def _running(peer: Peer, log: Path) -> Iterator[int]:
    """A server that is ready, by its process id."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(peer.command),
            cwd=peer.folder,
            env={**environment(PEERS_HOME, peer), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        ends_s = time.monotonic() + _START_S
        while not _ready():
            if time.monotonic() > ends_s or process.poll() is not None:
                raise RuntimeError(f"{peer.command[0]} is not ready: see {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _ready() -> bool:
    try:
        return get(int(HTTP_PORT), "/v2/health/ready")[0] == 200
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
