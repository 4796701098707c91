"""An ensemble of the real tritonserver, of ours, and as ``[app]``: described and answered alike."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from . import programs, repository
from .http_case import HttpCase
from .http_record import ask
from .normal import normal
from .record import Answers

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "mid" } },
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "mid" } output_map { key: "OUTPUT0" value: "Y" } }
] }
"""
APP = """
slo_ms = 30000
max_batch = 8
[app.inputs]
X = { datatype = "FP32", dims = [4] }
[app.outputs]
Y = { datatype = "FP32", dims = [4] }
[app.stages.one]
model = "ident"
inputs = { INPUT0 = "X" }
outputs = { OUTPUT0 = "mid" }
[app.stages.two]
model = "ident"
inputs = { INPUT0 = "mid" }
outputs = { OUTPUT0 = "Y" }
"""


def cases(name: str) -> list[HttpCase]:
    at, tensor = f"/v2/models/{name}", {"name": "X", "datatype": "FP32"}

    def infer(rows: int) -> bytes:
        one = {**tensor, "shape": [rows, 4], "data": [1.5] * 4 * rows}
        return json.dumps({"id": "7", "inputs": [one]}).encode()

    return [
        HttpCase("metadata", "GET", at),
        HttpCase("config", "GET", f"{at}/config"),
        HttpCase("infer", "POST", f"{at}/infer", infer(2)),
        HttpCase("too many rows", "POST", f"{at}/infer", infer(9)),
        HttpCase("stats", "GET", f"{at}/stats"),
        HttpCase("unload", "POST", f"/v2/repository/models/{name}/unload", b"{}"),
        HttpCase("unloaded", "GET", f"{at}/ready"),
        HttpCase("repository.index", "POST", "/v2/repository/index", b"{}"),
        HttpCase("load", "POST", f"/v2/repository/models/{name}/load", b"{}"),
    ]


def settled(port: int, case: HttpCase) -> Any:
    """The answer once no model is being unloaded any more: Triton unloads after it answered."""
    for _ in range(100):
        answer = ask(port, case)
        if "UNLOADING" not in json.dumps(answer):
            break
        time.sleep(0.05)
    return answer


def told(port: int, name: str) -> Answers:
    found = {one.name: settled(port, one) for one in cases(name)}
    index = found["repository.index"]["json"]
    found["repository.index"]["json"] = [one for one in index if one["name"] == name]
    # Triton adds the parameters of sequences to an ensemble's answer, and a namespace to steps.
    found["infer"]["json"].pop("parameters", None)
    steps = found["config"]["json"]["ensemble_scheduling"]["step"]
    plain: Any = {case: normal(case, answer) for case, answer in found.items()}
    plain["steps"] = [{k: v for k, v in one.items() if k != "model_namespace"} for one in steps]
    return dict(json.loads(json.dumps(plain).replace(f'"{name}"', '"it"').replace(name, "it")))


def write(root: Path, name: str, file: str, text: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / file).write_text(text)


def test_it_is_told_and_answered_as_the_real_servers(tmp_path: Path, folder: Path) -> None:
    if not (programs.HOME / "tritonserver" / ".done").exists():
        pytest.skip(f"no tritonserver in {programs.HOME}: {programs.HOW}")
    theirs = repository.write_triton(tmp_path / "triton", programs.TRITON_NUMPY)
    write(theirs, "twice", "config.pbtxt", ENSEMBLE)
    ports = programs.free_ports(3)
    command, env = programs.triton_command(theirs, ports)
    with programs.running(command, ports, tmp_path / "triton.log", env) as server:
        triton = told(server.http_port, "twice")
    root = repository.write_ours(tmp_path / "ours")
    write(root, "twice", "config.pbtxt", ENSEMBLE)
    write(root, "staged", "interlace.toml", APP)
    ports = programs.free_ports(3)
    command = programs.ours_command(root, ports, "--profiles", str(folder / "profiles"))
    with programs.running(command, ports, tmp_path / "ours.log") as server:
        ours, app = told(server.http_port, "twice"), told(server.http_port, "staged")
    for found in (ours, app):
        assert {case: found[case] for case in triton} == triton
