"""A neighbour's p99 while models come and go without pause: ours beside the real Triton.

One small CNN is asked back to back over one connection: alone, beside loads without pause, and
beside as many loads a second of both servers, in turns. The
loads: two wide models with their weights in a file, of which each answers one request before the
other comes. Triton is told to load and unload them by its repository API; ours has memory for one
of the two, and is only asked. What their requests take by themselves is beside each: as many of one
of the two, whose weights stay. Both servers have both cores, as has this process; the same code of
the models runs in both.
"""

from __future__ import annotations

import shutil
import sysconfig
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import numpy as np
import torch

import interlace
from bench.harness import Report, Row, main, spread
from bench.harness.closed_loop import closed_loop
from bench.peers import models, once
from bench.peers.server import Bench, Server, started
from bench.peers.table import OURS, PEERS_HOME, SERVERS, Peer, environment, installed
from bench.peers.wire import GRPC_PORT, HTTP_PORT, METRICS_PORT, v2_http
from interlace.load.call import Call, pack
from interlace.load.result import figures

_WIDE = ("wide_a", "wide_b")
_WIDTH, _LAYERS = 2048, 4  # 67 MB
_WIDE_CODE = f"""
from pathlib import Path
import torch
INPUTS = {{"INPUT": ("FP32", ({_WIDTH},))}}
def create_model():
    with torch.device("meta"):
        net = torch.nn.Sequential(
            *(torch.nn.Linear({_WIDTH}, {_WIDTH}) for _ in range({_LAYERS}))
        )
    weights = torch.load(Path(__file__).with_name("weights.pt"))
    net.load_state_dict(weights, assign=True)
    return net.eval()
"""
_TRITON_CODE = """
import sys; sys.path[:0] = [{numpy!r}, {site!r}]  # the backend's stub ignores PYTHONPATH
import importlib.util
import numpy as np, torch
import triton_python_backend_utils as pb
torch.set_num_threads(1)
class TritonPythonModel:
    def initialize(self, args):
        spec = importlib.util.spec_from_file_location("net", {code!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.net = module.create_model()
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "INPUT").as_numpy()
            with torch.inference_mode():
                y = self.net(torch.from_numpy(np.ascontiguousarray(x))).numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("OUTPUT", y)]))
        return answers
"""
_CONFIG = """max_batch_size: 16
input {{ name: "INPUT" data_type: TYPE_FP32 dims: {inputs} }}
output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: {outputs} }}
"""


def neighbour(
    *,
    seconds: Annotated[float, "of each turn"] = 4.0,
    turns: Annotated[int, "alone and beside loads"] = 5,
    paced_rps: Annotated[float, "loads a second of both"] = 0.5,
    cold: Annotated[str, "our row"] = "interlace",
    home: Annotated[Path, "where the peers are"] = PEERS_HOME,
    patience_s: Annotated[float, "for a quiet machine before each server"] = 20.0,
) -> Report:
    """The neighbour's p99 beside loads over alone, and how many loads there were."""
    rows: list[Row] = []
    kept: dict[str, object] = {}
    notes = ""
    with TemporaryDirectory() as folder:
        for peer in (_ours(Path(folder), cold), _triton(Path(folder), home)):
            name = "triton" if "triton" in peer.command[0] else "ours"
            if not installed(home, peer):
                notes = f"{name} is not installed: scripts/peers-setup triton pytriton"
                continue
            asked = v2_http("cnn", models.sample("cnn"))
            with started(name, peer, Bench(home, "0,1"), [asked], patience_s, 300.0) as server:
                found = _turns(server, asked, seconds, turns, paced_rps)
            kept[name] = found
            rows += _rows(name, found, seconds, paced_rps)
    return Report(rows, figures=kept, notes=notes)


class _Turn(NamedTuple):
    """The p99 alone, and beside loads, without pause and paced, with how many there were.

    ``asked_ms`` are beside as many requests of a model that stays.
    """

    alone_ms: float
    beside_ms: float
    loads: int
    asked_ms: float
    beside_paced_ms: float
    paced_loads: int
    asked_paced_ms: float


def _rows(name: str, found: list[_Turn], seconds: float, paced_rps: float) -> list[Row]:
    rows = []
    for what, aim, unit, values in (
        ("p99 alone", None, " ms", [one.alone_ms for one in found]),
        ("p99 beside loads over alone", 1.05, "", [one.beside_ms / one.alone_ms for one in found]),
        (
            "p99 beside loads over beside as many requests without",
            1.05,
            "",
            [one.beside_ms / one.asked_ms for one in found],
        ),
        ("loads a second, each answered", None, "", [one.loads / seconds for one in found]),
        (
            f"p99 beside {paced_rps:g} loads a second over alone",
            1.05,
            "",
            [one.beside_paced_ms / one.alone_ms for one in found],
        ),
        (
            f"p99 beside {paced_rps:g} loads a second over beside as many requests without",
            1.05,
            "",
            [one.beside_paced_ms / one.asked_paced_ms for one in found],
        ),
        ("paced loads a second", None, "", [one.paced_loads / seconds for one in found]),
    ):
        middle = spread(values)
        assert middle is not None
        words = f"{name}: {what} ({middle.least:.2f}-{middle.greatest:.2f})"
        rows.append(Row(words, aim, middle.median, unit))
    return rows


def _turns(
    server: Server, asked: Call, seconds: float, turns: int, paced_rps: float
) -> list[_Turn]:
    step, ask = (_triton_step, _triton_ask) if server.name == "triton" else (_our_step, _our_step)
    order = cycle(_WIDE)
    for _ in _WIDE:
        step(next(order))

    def p99_ms() -> float:
        """Where none was answered, the whole turn."""
        return float(figures(closed_loop(pack(asked), 1, seconds))["p99_ms"] or 1e3 * seconds)

    def beside(step: Callable[[], None], every_s: float) -> tuple[float, int]:
        loads = _Loads(step, every_s)
        return p99_ms(), loads.end()

    def turn(every_s: float) -> tuple[float, int, float]:
        beside_ms, count = beside(lambda: step(next(order)), every_s)
        if step is _triton_step:
            _triton_tell(_WIDE[0], "load")
        ask(_WIDE[0])
        asked_ms, _ = beside(partial(ask, _WIDE[0]), every_s or seconds / max(1, count))
        if step is _triton_step:
            _triton_tell(_WIDE[0], "unload")
        return beside_ms, count, asked_ms

    return [_Turn(p99_ms(), *turn(0.0), *turn(1 / paced_rps)) for _ in range(turns)]


class _Loads:
    """Loads, one every so many seconds or as it ends, in a thread until the end is asked for."""

    def __init__(self, step: Callable[[], None], every_s: float = 0.0) -> None:
        self._step = step
        self._every_s = every_s
        self._ended = threading.Event()
        self._count = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> int:
        """How many there were.

        Raises:
            BaseException: whatever one of them raised.
        """
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._count

    def _run(self) -> None:
        try:
            began_s = time.monotonic()
            while not self._ended.wait(began_s + self._count * self._every_s - time.monotonic()):
                self._step()
                self._count += 1
        except BaseException as error:
            self._failure = error


def _our_step(name: str) -> None:
    _ask(v2_http(name, np.ones(_WIDTH, np.float32), outputs=("OUTPUT__0",)))


def _triton_step(name: str) -> None:
    _triton_tell(name, "load")
    _triton_ask(name)
    _triton_tell(name, "unload")


def _triton_tell(name: str, what: str) -> None:
    _ask(Call("http", HTTP_PORT, f"/v2/repository/models/{name}/{what}", b"{}", {}))


def _triton_ask(name: str) -> None:
    _ask(v2_http(name, np.ones(_WIDTH, np.float32)))


def _ask(call: Call) -> None:
    status, body = once.ask(call)
    if status != 200:
        raise RuntimeError(f"{call.path}: {status}, {body[:300]!r}")


def _ours(folder: Path, cold: str) -> Peer:
    repository = folder / "ours"
    for name, code in _codes(folder).items():
        version = repository / name / "1"
        shutil.copytree(code, version, ignore=shutil.ignore_patterns("__pycache__"))
        (version.parent / "interlace.toml").write_text("slo_ms = 5000\n")
    shutil.copy(models.REPO / "cnn" / "config.pbtxt", repository / "cnn")
    nbytes = _LAYERS * (_WIDTH + 1) * _WIDTH * 4
    options = {
        "--memory": f"{1.3 * nbytes / 1e6:.0f}MB",
        "--cold": cold,
        "--http-port": HTTP_PORT,
        "--grpc-port": GRPC_PORT,
        "--metrics-port": METRICS_PORT,
        "--profiles": folder / "profiles",
    }
    words = [str(word) for option in options.items() for word in option]
    imported = {"PYTHONPATH": str(Path(interlace.__file__).parents[1])}
    return Peer((str(OURS), "serve", str(repository), *words), folder, {}, imported)


def _triton(folder: Path, home: Path) -> Peer:
    repository = folder / "triton"
    site, numpy = sysconfig.get_path("purelib"), f"{home}/tritonserver/numpy1"
    for name, code in _codes(folder).items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        source = _TRITON_CODE.format(numpy=numpy, site=site, code=str(code / "model.py"))
        (version / "model.py").write_text(source)
        shapes = models.SHAPES["cnn"] if name == "cnn" else ((_WIDTH,), (_WIDTH,))
        inputs, outputs = (list(shape) for shape in shapes)
        text = f'name: "{name}"\nbackend: "python"\n' + _CONFIG.format(
            inputs=inputs, outputs=outputs
        )
        (version.parent / "config.pbtxt").write_text(text)
    how = ("--model-control-mode=explicit", "--load-model=cnn")
    peer = Peer((f"{SERVERS}/triton.sh", *how), folder, {}, {"TRITON_REPO": str(repository)})
    assert environment(home, peer)["TRITON_REPO"].startswith("/")
    return peer


def _codes(folder: Path) -> dict[str, Path]:
    """The folder of each model's code and weights, made by whoever asks first."""
    found = {"cnn": models.REPO / "cnn" / "1"}
    for seed, name in enumerate(_WIDE):
        found[name] = code = folder / "code" / name
        if not code.exists():
            code.mkdir(parents=True)
            (code / "model.py").write_text(_WIDE_CODE)
            made = torch.Generator().manual_seed(seed)
            weights = {}
            for place in range(_LAYERS):
                weights[f"{place}.weight"] = torch.randn(_WIDTH, _WIDTH, generator=made) / 45
                weights[f"{place}.bias"] = torch.zeros(_WIDTH)
            torch.save(weights, code / "weights.pt")
    return found


if __name__ == "__main__":
    main(neighbour)
