"""Apps live on cores: requests in time, by system of the catalog and beside the real Triton.

``chain`` is an ensemble of three models, ``fan`` a detector whose crops another model takes: as
``[app]``, and as a Python model that calls both (BLS) in the real Triton. Both servers read the
same models, which sleep 4 ms a batch and 1 ms a row. Triton's rate limiter runs two at once, as
ours does on two cores. The highest rates are 0.9 of what two cores do in full batches. ``game`` and
``traffic`` are gpulet's apps (Figure 12) over ``examples/zoo``. Arrivals are Poisson, the same for
each server. Triton has two instances of each model, and needs what scripts/peers-setup installs.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np

from bench.harness import Report, Table, main
from bench.harness.command import ROOT
from bench.harness.load import goodput_rps, ms, poisson
from bench.mix.peers import CORE
from bench.peers.server import Bench, claim, started
from bench.peers.table import HERE, PEERS_HOME, Peer, ours, peers, prepare
from bench.peers.wire import v2_http
from interlace.load.connections import Call
from interlace.load.open_loop import LoadRun, OpenLoop, percentile

_TRITON: Final = "triton"
_CORES: Final = "0,1"
_CONNECTIONS: Final = 1_500
_WARM_S: Final = 2.0
_DRAIN_S: Final = 3.0
_NUMPY: Final = PEERS_HOME / "tritonserver" / "numpy1"
#: The backend's stub answers nothing under numpy 2.
_FIRST: Final = f"import sys\nsys.path.insert(0, {str(_NUMPY)!r})\n"
_HEAD: Final = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


def tensor(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(y):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])


def work(rows):
    time.sleep(0.004 + 0.001 * rows)


class TritonPythonModel:
    def execute(self, requests):
"""
_EACH: Final = """
        xs = [tensor(request, "X") for request in requests]
        work(sum(map(len, xs)))
        return [answer(x) for x in xs]
"""
#: As many crops as the first value says.
_DETECT: Final = """
        answers = []
        for request in requests:
            work(1)
            answers.append(answer(np.ones((int(tensor(request, "X")[0]), 4), np.float32)))
        return answers
"""
_CALLS: Final = """
        answers = []
        for request in requests:
            y = pb_utils.get_input_tensor_by_name(request, "X")
            for model in ("detect", "name"):
                x = pb_utils.Tensor("X", y.as_numpy())
                call = pb_utils.InferenceRequest(
                    model_name=model, requested_output_names=["Y"], inputs=[x])
                y = pb_utils.get_output_tensor_by_name(call.exec(), "Y")
            answers.append(answer(y.as_numpy()))
        return answers
"""
_TENSORS: Final = """max_batch_size: {batch}
input [ {{ name: "X" data_type: TYPE_FP32 dims: {x} }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: {y} }} ]
"""
_PYTHON: Final = """backend: "python"
instance_group [ {{ count: {count} kind: KIND_CPU {limit} }} ]
{batching}"""
#: Instances of a model that calls others: one waits for each request.
_CALLERS: Final = 16
_STEP: Final = """{{ model_name: "{model}" model_version: -1
  input_map {{ key: "X" value: "{x}" }} output_map {{ key: "Y" value: "{y}" }} }}"""
_FAN: Final = """
rate_rps = 60
[app.inputs]
X = { datatype = "FP32", dims = [1] }
[app.outputs]
Y = { datatype = "FP32", dims = [-1, 4] }
[app.stages.detect]
model = "detect"
inputs = { X = "X" }
outputs = { Y = "crops" }
[app.stages.name]
model = "name"
inputs = { X = "crops" }
outputs = { Y = "Y" }
rows = 2.5
"""


@dataclass(frozen=True, slots=True)
class World:
    """An app: its repository, for Triton or not, one call of each kind, its SLO and rates."""

    write: Callable[[Path, bool], None]
    calls: Sequence[Call]
    slo_ms: float
    rates_rps: tuple[float, ...]


def apps(
    servers: Annotated[tuple[str, ...], "systems of the catalog, or triton"] = (
        "interlace",
        _TRITON,
    ),
    /,
    *,
    world: Literal["chain", "fan", "game", "traffic"] = "chain",
    rates: Annotated[tuple[float, ...], "requests/s; the world's own if none"] = (),
    seconds: Annotated[float, "of each rate"] = 10.0,
    reps: int = 1,
) -> Report:
    """Requests in time per second, by server and rate."""
    asked = _worlds()[world]
    claim(set(), -10)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        there = {name: _peer(name, asked, Path(folder)) for name in servers}
        for name in servers:
            if name != _TRITON:
                prepare(PEERS_HOME, there[name])  # profiles are measured once, by the first
        for seed in range(1, reps + 1):
            for name, peer in there.items():
                bench = Bench(PEERS_HOME, _CORES)
                with started(f"apps-{name}", peer, bench, [*asked.calls], 5.0, 600.0):
                    for rate in rates or asked.rates_rps:
                        row = {"server": name, "seed": seed, "rate": rate}
                        rows.append(row | _played(asked, rate, seconds, seed))
                        print(rows[-1], flush=True)
    return Report(tables=[_table(rows)], figures=rows)


def _played(asked: World, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    each = [rate / len(asked.calls)] * len(asked.calls)
    arrivals = poisson(each, _WARM_S + seconds, seed)
    run = OpenLoop([one.encoded() for one in asked.calls], arrivals, _CONNECTIONS).run(_DRAIN_S)
    counted = [one for one in run.samples if one.due_s >= _WARM_S]
    return {
        "offered_rps": len(counted) / seconds,
        "in_time_rps": goodput_rps(counted, asked.slo_ms, seconds),
        **_ends(run._replace(samples=counted), asked.slo_ms),
    }


def _ends(run: LoadRun, slo_ms: float) -> dict[str, Any]:
    answered = [one.latency_s for one in run.samples if one.status == 200]
    return {
        "late": sum(one * 1e3 > slo_ms for one in answered),
        "refused": sum(one.status in (429, 503) for one in run.samples),
        "expired": sum(one.status == 504 for one in run.samples),
        "p50_ms": ms(percentile(answered, 50)),
        "p99_ms": ms(percentile(answered, 99)),
        "client_busy": round(run.busy, 3),
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Means over the repetitions, and the first server's over each other's."""
    rates = sorted({row["rate"] for row in rows})
    means: dict[str, list[float]] = {}
    for name in dict.fromkeys(row["server"] for row in rows):
        own = [row for row in rows if row["server"] == name]
        each = [[row["in_time_rps"] for row in own if row["rate"] == rate] for rate in rates]
        means[name] = [sum(values) / len(values) for values in each]
    first, *others = means
    cells = [(name, *(f"{value:.1f}" for value in values)) for name, values in means.items()]
    for other in others:
        pairs = zip(means[first], means[other], strict=True)
        ratios = (f"{mine / its:.2f}" if its else "-" for mine, its in pairs)
        cells.append((f"{first} / {other}", *ratios))
    return Table(("in time, requests/s", *(f"{rate:g}/s" for rate in rates)), cells)


def _peer(name: str, asked: World, folder: Path) -> Peer:
    root = folder / (_TRITON if name == _TRITON else "ours")
    if not root.exists():
        asked.write(root, name == _TRITON)
    if name == _TRITON:
        peer = peers(PEERS_HOME)[_TRITON]
        limited = ("--rate-limit=execution_count", "--rate-limit-resource=core:2")
        command = (*peer.command, *limited)
        return replace(peer, command=command, env={"TRITON_REPO": str(root)}, setup=())
    peer = ours(PEERS_HOME, root, "apps-profiles")
    command = (*peer.command, "--system", name)
    return replace(peer, command=command, env={"PYTHONPATH": f"{HERE}:{ROOT}"})


def _worlds() -> dict[str, World]:
    row, picture = np.ones((1, 4), np.float32), np.ones((3, 224, 224), np.float32)
    crops = [v2_http("app", {"X": np.array([count], np.float32)}) for count in (1, 2, 3, 4)]
    game = v2_http("game", {"digits": np.ones((6, 1, 28, 28), np.float32), "picture": picture})
    traffic = v2_http("traffic", {"picture": picture})
    return {
        "chain": World(_write_chain, [v2_http("app", {"X": row})], 150.0, (200.0, 400.0)),
        "fan": World(_write_fan, crops, 150.0, (100.0, 205.0)),
        "game": World(_zoo("game"), [game], 1_000.0, (5.0, 10.0)),
        "traffic": World(_zoo("traffic"), [traffic], 4_000.0, (0.5, 1.0)),
    }


def _model(root: Path, name: str, code: str, tensors: str) -> None:
    folder = root / name
    (folder / "1").mkdir(parents=True)
    first = _FIRST if root.name == _TRITON else ""
    (folder / "1" / "model.py").write_text(first + _HEAD + code)
    batching, calls = (
        "dynamic_batching { }\n" if "max_batch_size: 8" in tensors else "",
        code is _CALLS,
    )
    backend = _PYTHON.format(
        count=_CALLERS if calls else 2, limit="" if calls else CORE, batching=batching
    )
    (folder / "config.pbtxt").write_text(backend + tensors)
    (folder / "interlace.toml").write_text("slo_ms = 150\n")


def _write_chain(root: Path, triton: bool) -> None:
    tensors = _TENSORS.format(batch=8, x=[4], y=[4])
    for name in "abc":
        _model(root, name, _EACH, tensors)
    edges = zip("abc", ("X", "t1", "t2"), ("t1", "t2", "Y"), strict=True)
    steps = ", ".join(_STEP.format(model=model, x=x, y=y) for model, x, y in edges)
    (root / "app" / "1").mkdir(parents=True)
    config = f'platform: "ensemble"\n{tensors}ensemble_scheduling {{ step [ {steps} ] }}\n'
    (root / "app" / "config.pbtxt").write_text(config)
    (root / "app" / "interlace.toml").write_text("slo_ms = 150\nrate_rps = 150\n")


def _write_fan(root: Path, triton: bool) -> None:
    _model(root, "detect", _DETECT, _TENSORS.format(batch=0, x=[1], y=[-1, 4]))
    _model(root, "name", _EACH, _TENSORS.format(batch=8, x=[4], y=[4]))
    if triton:
        _model(root, "app", _CALLS, _TENSORS.format(batch=0, x=[1], y=[-1, 4]))
    else:
        (root / "app").mkdir()
        (root / "app" / "interlace.toml").write_text("slo_ms = 150" + _FAN)


def _zoo(app: str) -> Callable[[Path, bool], None]:
    def write(root: Path, triton: bool) -> None:
        zoo = ROOT / "examples" / "zoo"
        table = tomllib.loads((zoo / app / "interlace.toml").read_text())
        shutil.copytree(zoo / app, root / app)
        for name in {stage["model"] for stage in table["app"]["stages"].values()}:
            shutil.copytree(zoo / name, root / name)
            terms = root / name / "interlace.toml"  # whose SLO is for GPUs, and its own requests
            slo = f"slo_ms = {table['slo_ms']}"
            terms.write_text(re.sub(r"slo_ms = \d+", slo, terms.read_text()))

    return write


if __name__ == "__main__":
    main(apps)
