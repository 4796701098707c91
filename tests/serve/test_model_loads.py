"""Models that load others while they are loaded, and models whose files come with the load."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.repository.folders import add
from tests.serve.server import Server

#: Does what its parameter says when it is initialized, and what its word says when it is executed.
MODEL = """
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        steps = parameters.get("steps", {"string_value": "None"})["string_value"].split(";")
        self.said = [str(eval(one, vars(pb_utils))) for one in steps]

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "WORD")) for r in requests]

    def answer(self, tensor):
        word = tensor.as_numpy()[0, 0].decode()
        if word == "die":
            os._exit(4)
        try:
            said = self.said if word == "said" else [str(eval(word, vars(pb_utils)))]
        except Exception as error:
            said = [str(error)]
        text = np.array([["|".join(said)]], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", text)])
"""
ANSWERS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        text = np.array([["%s"]], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", text)]) for _ in requests]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "slo_ms" value: { string_value: "120000" } }
"""
STEPS = 'parameters {{ key: "steps" value: {{ string_value: "{}" }} }}\n'
#: The configuration of a model that comes with its files.
SENT: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [{"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]}],
    "parameters": {"slo_ms": {"string_value": "120000"}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("loads")
    steps = {
        "plain": "",
        "first": "load_model('plain');is_model_ready('plain')",
        "second": "load_model('first');is_model_ready('plain')",
        "x": "load_model('y')",
        "y": "load_model('x')",
    }
    for name, asked in steps.items():
        config = CONFIG + (STEPS.format(asked) if asked else "")
        add(root, name, {"config.pbtxt": config, "1/model.py": MODEL})
    made = Server(root, cache, "--trust-models", "all,sent")
    try:
        yield made.wait_ready()
    finally:
        made.kill()


def ask(server: Server, said: str, model: str) -> tuple[int, Any]:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1, 1], "data": [said]}
    status, answer = server.call("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def load(server: Server, name: str, **parameters: str) -> tuple[int, Any]:
    body = {"parameters": parameters}
    return server.call("POST", f"/v2/repository/models/{name}/load", body)


def unload(server: Server, *names: str) -> None:
    for name in names:
        assert server.call("POST", f"/v2/repository/models/{name}/unload", {})[0] == 200


def test_the_start_of_the_server_serves_models_that_load_each_other(server: Server) -> None:
    for name in ("plain", "first", "second", "x", "y"):
        assert server.call("GET", f"/v2/models/{name}/ready")[0] == 200
    assert ask(server, "said", "x")[0] == 200


def test_a_model_loads_others_while_it_is_loaded(server: Server) -> None:
    unload(server, "second", "first", "plain")
    assert load(server, "second") == (200, "")
    assert ask(server, "said", "second") == (200, "None|True")
    assert ask(server, "said", "first") == (200, "None|True")
    assert ask(server, "said", "plain") == (200, "None")


def test_many_load_at_once_what_loads_others(server: Server) -> None:
    for _ in range(3):
        unload(server, "second", "first", "plain")
        with ThreadPoolExecutor(6) as threads:
            names = ["second", "first", "plain", "second", "first", "plain"]
            answers = list(threads.map(lambda name: load(server, name), names))
        assert answers == [(200, "")] * 6
        assert ask(server, "said", "second") == (200, "None|True")


def test_a_circle_of_loads_is_refused_by_name(server: Server) -> None:
    unload(server, "x", "y")
    status, answer = load(server, "x")
    assert status == 500
    assert "model 'y' cannot load 'x': they would wait in a circle: y -> x -> y" in answer["error"]
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda name: load(server, name), ["x", "y"]))
    assert {status for status, _ in both} == {500}
    assert any("would wait in a circle" in answer["error"] for _, answer in both)


def test_a_model_whose_worker_died_loads_others_again(server: Server) -> None:
    assert load(server, "first")[0] == 200
    unload(server, "plain")
    ask(server, "die", "first")
    for _ in range(100):
        status, answer = ask(server, "said", "first")
        if status == 200:
            break
    assert answer == "None|True"
    assert ask(server, "said", "plain") == (200, "None")


def test_a_models_code_sends_the_files_of_another(server: Server) -> None:
    for word in ("one", "two"):
        files = {"file:1/model.py": (ANSWERS % word).encode(), "file:1/data.bin": bytes(200_000)}
        compact = f"dict({{'file:1/model.py': {files['file:1/model.py']!r}}}, "
        compact += "**{'file:1/data.bin': bytes(200000)})"
        step = f"load_model('made', files={compact}, config={json.dumps(SENT)!r})"
        assert ask(server, step, "plain") == (200, "None")
        assert ask(server, "", "made") == (200, word)
    status, answer = load(server, "made")
    assert status == 404 and "has no such folder" in answer["error"]
    assert ask(server, "", "made") == (200, "two")
    unload(server, "made")
    assert ask(server, "", "made")[0] == 404


def test_files_stand_in_for_the_folder_until_the_next_load(server: Server) -> None:
    code = base64.b64encode((ANSWERS % "sent").encode()).decode()
    sent = {"config": json.dumps(SENT), "file:/3/model.py": code}
    assert load(server, "sent", **sent) == (200, "")
    metadata = server.call("GET", "/v2/models/sent")[1]
    assert metadata["versions"] == ["3"]
    assert ask(server, "", "sent") == (200, "sent")


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_clients_send_files_over_both_transports(server: Server, over: str) -> None:
    code = (ANSWERS % over).encode()
    if over == "grpc":
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            files = {"file:1/model.py": code, "file:1/more.bin": bytes(30 << 20)}
            client.load_model("sent", config=json.dumps(SENT), files=files)
            with pytest.raises(InferenceServerException, match="config"):
                client.load_model("sent", files=files)
    else:
        text = base64.b64encode(code).decode()
        more = base64.b64encode(bytes(30 << 20)).decode()
        parameters = {"file:1/model.py": text, "file:1/more.bin": more}
        assert load(server, "sent", config=json.dumps(SENT), **parameters) == (200, "")
        assert load(server, "sent", **{"file:1/model.py": text})[0] == 400
    assert ask(server, "", "sent") == (200, over)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("../../plain/1/model.py", 400, "expected a path in the model's folder"),
        ("1/../../plain/1/model.py", 400, "expected a path in the model's folder"),
        ("//etc/cron.d/x", 400, "expected a path in the model's folder"),
        ("", 400, "expected a path in the model's folder"),
        ("1/a\0b", 400, "expected a path in the model's folder"),
        (f"1/{'x' * 300}", 500, "could not be written: File name too long"),
        ("model.py", 500, "no version folder"),
        ("1/other.txt", 500, "no model file among other.txt"),
    ],
)
def test_files_go_nowhere_else(server: Server, path: str, status: int, said: str) -> None:
    code = base64.b64encode((ANSWERS % "x").encode()).decode()
    found, answer = load(server, "sent", config=json.dumps(SENT), **{f"file:{path}": code})
    assert found == status and said in answer["error"]
    assert ask(server, "said", "plain")[0] == 200


def test_code_of_clients_needs_the_operators_word(server: Server) -> None:
    code = base64.b64encode((ANSWERS % "x").encode()).decode()
    sent = {"config": json.dumps(SENT), "file:1/model.py": code}
    status, answer = load(server, "other", **sent)
    assert status == 500 and "--trust-models all,sent,other if you" in answer["error"]
    assert server.call("GET", "/v2/models/other/ready")[0] == 400
