"""Ensembles of a running server, as clients and operators see them."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.attack.repository import write_model
from tests.repository.folders import add
from tests.serve.server import CRASH, Server
from tests.serve.test_lifecycle import Shared
from tests.server.fakes import wait_until

_TENSOR = "data_type: TYPE_FP32 dims: [ 4 ] } ]"


def write_ensemble(root: Path, name: str, members: list[str], last: str = "y") -> None:
    """Members one after the other, from ``x`` to ``y``."""
    steps, tensor = [], "x"
    for number, member in enumerate(members):
        result = last if number == len(members) - 1 else f"t{number}"
        maps = f'input_map {{ key: "x" value: "{tensor}" }} '
        maps += f'output_map {{ key: "y" value: "{result}" }}'
        steps.append(f'step [ {{ model_name: "{member}" {maps} }} ]')
        tensor = result
    (root / name).mkdir()
    (root / name / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 4\n'
        f'input [ {{ name: "x" {_TENSOR}\noutput [ {{ name: "y" {_TENSOR}\n'
        f"ensemble_scheduling {{\n{chr(10).join(steps)}\n}}\n"
    )
    (root / name / "interlace.toml").write_text("slo_ms = 30000\n")


_STAGE = """
import torch

INPUTS = {{"x": ("FP32", {inputs})}}
OUTPUTS = {{"y": ("FP32", {outputs})}}
BATCHED = False


class Stage(torch.nn.Module):
    def forward(self, x):
        return {result}


def create_model():
    return Stage()
"""
_CROPS = """
slo_ms = 30000

[app.inputs]
x = { datatype = "FP32", dims = [4] }
[app.outputs]
y = { datatype = "FP32", dims = [-1, 4] }
total = { datatype = "FP32", dims = [4] }

[app.stages.find]
model = "finder"
inputs = { x = "x" }
outputs = { y = "crops" }
[app.stages.each]
model = "double"
inputs = { x = "crops" }
outputs = { y = "y" }
rows = 3.0
[app.stages.total]
model = "total"
inputs = { x = "y" }
outputs = { y = "total" }
"""


_HEARS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            top = json.loads(request.parameters()).get("top", 0)
            said = [[top, len(request.request_id()), 0, 0]]
            output = pb_utils.Tensor("y", np.array(said, np.float32))
            responses.append(pb_utils.InferenceResponse([output] if top < 9 else []))
        return responses
"""
_COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        counts = [np.full((1, 4), len(request.inputs()), np.float32) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one)]) for one in counts]
"""
_WITHOUT = f"""platform: "ensemble"
max_batch_size: 4
input [ {{ name: "x" {_TENSOR}
output [ {{ name: "y" {_TENSOR}
ensemble_scheduling {{
  step [ {{ model_name: "hears" input_map {{ key: "x" value: "x" }}
            output_map {{ key: "y" value: "t" }} }},
         {{ model_name: "counts" input_map {{ key: "x" value: "x" }}
            input_map {{ key: "more" value: "t" }} output_map {{ key: "y" value: "y" }} }} ]
}}
"""


def write_crops(root: Path) -> None:
    """An app that finds as many rows as its input says, doubles each, and adds them up."""
    for name, inputs, outputs, result in (
        ("finder", "(4,)", "(-1, 4)", "torch.ones(max(0, min(99, int(x[0]))), 4)"),
        ("total", "(-1, 4)", "(4,)", "x.sum(0)"),
    ):
        (root / name / "1").mkdir(parents=True)
        text = _STAGE.format(inputs=inputs, outputs=outputs, result=result)
        (root / name / "1" / "model.py").write_text(text)
        (root / name / "interlace.toml").write_text("slo_ms = 30000\n")
    for name, text in (("crops", _CROPS), ("wrong", _CROPS.replace('"total"\ni', '"lost"\ni'))):
        (root / name).mkdir()
        (root / name / "interlace.toml").write_text(text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("ensembles")
    for name, factor in (("double", 2.0), ("treble", 3.0), ("crash", 5.0), ("other", 7.0)):
        write_model(root, name, factor=factor, extra=CRASH if name == "crash" else "pass")
    write_ensemble(root, "sixfold", ["double", "treble"])
    write_ensemble(root, "nested", ["sixfold", "double"])
    write_ensemble(root, "fragile", ["double", "crash"])
    write_ensemble(root, "follows", ["double", "other"])
    write_ensemble(root, "unknown", ["double", "nobody"])
    write_ensemble(root, "open", ["double", "treble"], last="z")
    write_ensemble(root, "waits", ["double", "late"])
    write_ensemble(root, "hen", ["egg"])
    write_ensemble(root, "egg", ["hen"])
    write_crops(root)
    config = f'input [ {{ name: "x" {_TENSOR}\noutput [ {{ name: "y" {_TENSOR}\nmax_batch_size: 4\n'
    add(root, "hears", {"config.pbtxt": config, "1/model.py": _HEARS})
    more = config + f'input [ {{ name: "more" optional: true {_TENSOR}\n'
    add(root, "counts", {"config.pbtxt": more, "1/model.py": _COUNTS})
    add(root, "without", {"config.pbtxt": _WITHOUT})
    write_ensemble(root, "tells", ["double", "hears"])
    write_ensemble(root, "retells", ["tells"])
    server = Server(root, cache, "--allow-missing", "all")
    try:
        yield Shared(root, server.wait_ready())
    finally:
        server.kill()


def outputs(answer: tuple[int, Any]) -> list[float]:
    status, body = answer
    assert status == 200, body
    (output,) = body["outputs"]
    assert output["name"] == "y"
    return list(output["data"])


def index(server: Server) -> dict[str, dict[str, str]]:
    _, entries = server.call("POST", "/v2/repository/index", {})
    return {entry["name"]: entry for entry in entries}


def test_one_call_runs_all_steps(shared: Shared) -> None:
    assert outputs(shared.server.infer("sixfold", 1.5)) == [9.0] * 4
    assert outputs(shared.server.infer("nested", 1.5)) == [18.0] * 4


def tell(shared: Shared, name: str, top: int) -> list[float]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0] * 4}
    body = {"inputs": [tensor], "id": "abc", "parameters": {"top": top}}
    return outputs(shared.server.call("POST", f"/v2/models/{name}/infer", body))


@pytest.mark.parametrize("name", ["tells", "retells"])
def test_code_of_members_hears_what_the_client_says(shared: Shared, name: str) -> None:
    assert tell(shared, name, 7) == [7.0, 3.0, 0.0, 0.0]


def test_outputs_that_code_leaves_out_are_optional_inputs_that_are_not_given(
    shared: Shared,
) -> None:
    assert [tell(shared, "without", top)[0] for top in (8, 9)] == [2.0, 1.0]


def test_many_calls_get_their_own_answers(shared: Shared) -> None:
    def call(value: int) -> list[float]:
        return outputs(shared.server.infer("sixfold", float(value), slo_ms=60_000.0))

    with ThreadPoolExecutor(8) as pool:
        for value, found in enumerate(pool.map(call, range(100))):
            assert found == [6.0 * value] * 4


def test_wrong_graphs_are_named_and_the_rest_serves(shared: Shared) -> None:
    states = index(shared.server)
    assert states["sixfold"]["state"] == "READY"
    assert "config.pbtxt:7: ensemble_scheduling.step[1]" in states["unknown"]["reason"]
    assert "'nobody'" in states["unknown"]["reason"]
    assert "output[0].name: found 'y'" in states["open"]["reason"]
    assert shared.server.infer("unknown")[0] == 404
    assert "wrong/interlace.toml:20: app.stages.total.model" in states["wrong"]["reason"]


@pytest.mark.parametrize("rows", [0, 1, 11])
def test_crops_go_on_as_rows_however_many_there_are(shared: Shared, rows: int) -> None:
    status, body = shared.server.call(
        "POST",
        "/v2/models/crops/infer",
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": [rows] * 4}]},
    )
    assert status == 200, body
    found = {one["name"]: (one["shape"], one["data"]) for one in body["outputs"]}
    assert found == {
        "y": ([rows, 4], [2.0] * (4 * rows)),
        "total": ([4], [2.0 * rows] * 4),
    }


def test_an_answer_and_metrics_tell_each_stages_wait_run_and_slack(shared: Shared) -> None:
    server = shared.server
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=100.0)
    tensor = {"name": "x", "datatype": "FP32", "shape": [4], "data": [3] * 4}
    for binary in (False, True):
        body = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
        connection.request("POST", "/v2/models/crops/infer", json.dumps(body))
        response = connection.getresponse()
        response.read()
        stages = (response.getheader("Server-Timing") or "").split(", ")
        assert [one.split(";")[0] for one in stages] == ["find", "each", "total"]
        for one in stages:
            dur, wait, run, slack = (float(part.split("=")[1]) for part in one.split(";")[1:])
            assert dur == pytest.approx(wait + run, abs=0.002)
            assert wait >= 0.0 and 0.0 < run < 30_000.0 and 0.0 < slack < 30_000.0
    connection.close()
    _, page = server.call("GET", "/metrics")
    line = next(one for one in page.splitlines() if 'stage_run_ms_total{model="crops"' in one)
    assert 'stage="find"' in line and float(line.split()[-1]) > 0.0


def test_it_is_described_as_an_ensemble(shared: Shared) -> None:
    _, metadata = shared.server.call("GET", "/v2/models/sixfold")
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    _, config = shared.server.call("GET", "/v2/models/sixfold/config")
    assert [one["model_name"] for one in config["ensemble_scheduling"]["step"]] == [
        "double",
        "treble",
    ]
    assert shared.server.call("GET", "/v2/models/sixfold/ready")[0] == 200


def test_statistics_count_the_ensemble_and_its_members(shared: Shared) -> None:
    def counts() -> dict[str, int]:
        _, found = shared.server.call("GET", "/v2/models/stats")
        return {
            one["name"]: one["inference_stats"]["success"]["count"] for one in found["model_stats"]
        }

    before = counts()
    outputs(shared.server.infer("sixfold"))
    after = counts()
    grown = {name for name in after if after[name] == before[name] + 1}
    assert grown == {"sixfold", "double", "treble"}


def test_a_call_is_checked_like_one_of_a_model(shared: Shared) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [5, 4], "data": [1.0] * 20}
    status, body = shared.server.call("POST", "/v2/models/sixfold/infer", {"inputs": [tensor]})
    assert status == 400 and "batch-size must be <= 4 for 'sixfold'" in body["error"]


def test_what_cannot_be_in_time_is_refused_on_arrival(shared: Shared) -> None:
    status, body = shared.server.infer("sixfold", slo_ms=0.001)
    assert status in (503, 504)
    assert body["error"].startswith("in ensemble 'sixfold', ")


def test_a_member_whose_worker_dies_fails_the_call_and_the_next_is_served(shared: Shared) -> None:
    status, body = shared.server.infer("fragile", 1e7)
    assert status == 500
    assert "in ensemble 'fragile', " in body["error"]
    wait_until(lambda: shared.server.infer("fragile", 1.0)[0] == 200)  # its worker starts anew
    assert outputs(shared.server.infer("fragile", 1.0)) == [10.0] * 4


def test_it_follows_its_members(shared: Shared) -> None:
    server = shared.server
    assert outputs(server.infer("follows")) == [14.0] * 4
    assert server.call("POST", "/v2/repository/models/other/unload", {})[0] == 200
    assert server.call("GET", "/v2/models/follows/ready")[0] != 200
    assert index(server)["follows"]["state"] == "UNAVAILABLE"
    status, body = server.infer("follows")
    assert status == 404 and "in ensemble 'follows'" in body["error"]
    assert server.call("POST", "/v2/repository/models/follows/unload", {})[0] == 200
    assert server.call("POST", "/v2/repository/models/follows/load", {})[0] == 200
    assert outputs(server.infer("follows")) == [14.0] * 4, "its member was loaded with it"


def test_one_whose_member_comes_later_is_served_then(shared: Shared) -> None:
    server = shared.server
    assert index(server)["waits"]["state"] == "UNAVAILABLE"
    write_model(shared.root, "late", factor=11.0)
    assert server.call("POST", "/v2/repository/models/late/load", {})[0] == 200
    assert index(server)["waits"]["state"] == "READY"
    assert outputs(server.infer("waits")) == [22.0] * 4


def test_ensembles_that_contain_each_other_are_refused_and_block_no_load(shared: Shared) -> None:
    for name, other in (("hen", "egg"), ("egg", "hen")):
        status, body = shared.server.call("POST", f"/v2/repository/models/{name}/load", {})
        assert status != 200
        assert f"a cycle: {name} -> {other} -> {name}" in body["error"]
