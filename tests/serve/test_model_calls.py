"""Models of the Python backend that call others, as their clients see it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.repository.folders import add
from tests.serve.server import Server, Traffic

#: Calls what its word says: ``name``, ``name,name`` one after the other, ``name&name`` at once.
CALLER = """
import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


def words(response):
    if response.has_error():
        error = response.error()
        text = f"{int(error.code())}: {error.message()}"
        return pb_utils.Tensor("WORD", np.array([[text]], object))
    (tensor,) = response.output_tensors()
    return tensor


def request(name, tensor, **more):
    return pb_utils.InferenceRequest(
        model_name=name.encode(),  # as an element of an input is
        inputs=[tensor],
        requested_output_names=["ANSWER" if name == "chain" else "WORD"],
        **more
    )


class TritonPythonModel:
    def initialize(self, args):
        kind = pb_utils.MetricFamily.COUNTER
        self.family = pb_utils.MetricFamily("leaves_total", "Words that end here", kind)
        self.leaves = self.family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "WORD")) for r in requests]

    def answer(self, tensor):
        said = tensor.as_numpy()[0, 0].decode()
        names, _, rest = said.partition(" ")
        if names == "leaf":
            return self.leaf(rest)
        tensor = pb_utils.Tensor("WORD", np.array([[rest]], object))
        if names == "echo":
            return pb_utils.InferenceResponse([tensor])
        if "&" in names:
            return self.joined(names.split("&"), tensor)
        for name in names.split(","):
            name, _, timeout = name.partition("@")
            tensor = words(request(name, tensor, timeout=int(timeout or 0)).exec())
        array = tensor.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", array)])

    def joined(self, names, tensor):
        calls = [request(name, tensor) for name in names]
        if "both" in names:
            calls = [request(name, tensor) for name in names if name != "both"]
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(lambda call: words(call.exec()), calls))
        else:
            async def all_of_them():
                late = request("c", pb_utils.Tensor("WORD", np.array([["leaf sleep0.2"]], object)))
                try:
                    await asyncio.wait_for(late.async_exec(), 0.01)
                except asyncio.TimeoutError:
                    pass
                return await asyncio.gather(*[call.async_exec() for call in calls])

            found = [words(one) for one in asyncio.run(all_of_them())]
        text = b"+".join(one.as_numpy()[0, 0] for one in found)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([[text]], object))])

    def leaf(self, word):
        self.leaves.increment(1)
        if word.startswith("sleep"):
            time.sleep(float(word[5:]))
        if word == "die":
            os._exit(4)
        if word == "none":
            error = pb_utils.TritonError("no such word", pb_utils.TritonError.NOT_FOUND)
            return pb_utils.InferenceResponse([], error)
        text = np.array([[f"<{word}>"]], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", text)])
"""
#: Does to models what its word says, step by step.
MANAGER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "WORD")) for r in requests]

    def answer(self, tensor):
        said = []
        for step in tensor.as_numpy()[0, 0].decode().split(";"):
            try:
                said.append(str(eval(step, vars(pb_utils))))
            except Exception as error:
                said.append(str(error))
        text = np.array([["|".join(said)]], object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", text)])
"""
CONFIG = """backend: "python"
max_batch_size: 4
input { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "slo_ms" value: { string_value: "20000" } }
"""
ENSEMBLE = """platform: "ensemble"
parameters { key: "slo_ms" value: { string_value: "20000" } }
max_batch_size: 4
input { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] }
ensemble_scheduling { step [
  { model_name: "a" model_version: -1
    input_map { key: "WORD" value: "WORD" } output_map { key: "WORD" value: "MIDDLE" } },
  { model_name: "b" model_version: -1
    input_map { key: "WORD" value: "MIDDLE" } output_map { key: "WORD" value: "ANSWER" } }
] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("calls")
    for name in ("top", "a", "b", "c"):
        add(root, name, {"config.pbtxt": CONFIG, "1/model.py": CALLER})
    add(root, "spare", {"config.pbtxt": CONFIG, "1/model.py": CALLER})
    add(root, "manager", {"config.pbtxt": CONFIG, "1/model.py": MANAGER})
    for name in ("unset", "unset_too"):
        add(root, name, {"config.pbtxt": re.sub("parameters.*", "", CONFIG), "1/model.py": CALLER})
    add(root, "chain", {"config.pbtxt": ENSEMBLE})
    made = Server(root, cache)
    try:
        yield made.wait_ready()
    finally:
        made.kill()


def ask(server: Server, said: str, model: str = "top", **parameters: object) -> tuple[int, Any]:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1, 1], "data": [said]}
    body = {"inputs": [tensor], "parameters": parameters}
    status, answer = server.call("POST", f"/v2/models/{model}/infer", body)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("a leaf x", "<x>"),
        ("a b leaf x", "<x>"),
        ("a b c leaf x", "<x>"),
        ("a&b&c leaf x", "<x>+<x>+<x>"),
        ("a&b&both leaf x", "<x>+<x>"),
        ("a b&c leaf x", "<x>+<x>"),
        ("chain echo leaf x", "<x>"),
        ("nobody leaf x", "2: Request for unknown model: 'nobody' is not found"),
        ("b@1000 leaf sleep0.3", "4: "),
        ("b leaf none", "2: no such word"),
        ("top leaf x", "3: model 'top' cannot call 'top': models would call each other in a c"),
        ("a b top leaf x", "3: model 'b' cannot call 'top': models would call each other in a c"),
    ],
)
def test_calls_are_answered(server: Server, said: str, answer: str) -> None:
    status, text = ask(server, said)
    assert status == 200 and text.startswith(answer)
    if answer.endswith(">"):
        assert text == answer


def test_what_models_count_is_on_the_metrics_page(server: Server) -> None:
    def counted() -> float:
        text = server.call("GET", "/metrics")[1]
        found = re.search(r'^leaves_total{model="c"} (\d+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = counted()
    for _ in range(5):
        assert ask(server, "c leaf x")[1] == "<x>"
    assert counted() == before + 5


def test_callers_never_keep_their_callees_from_running(server: Server) -> None:
    said = ["a b c leaf x", "b c leaf x", "a&b&c leaf x", "b&c&both leaf x", "chain echo leaf x"]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda one: ask(server, one), said * 12))
    assert {status for status, _ in answers} == {200}
    wanted = ["<x>", "<x>", "<x>+<x>+<x>", "<x>+<x>", "<x>"]
    assert [text for _, text in answers] == wanted * 12


def test_code_for_which_nobody_set_an_slo_may_take_its_time(server: Server) -> None:
    assert ask(server, "unset leaf sleep1.3", "unset_too") == (200, "<sleep1.3>")


def test_the_callers_deadline_holds_for_the_call(server: Server) -> None:
    status, text = ask(server, "a leaf sleep0.3", slo_ms=100)
    assert status in (429, 503, 504) or text.startswith("4: ")


def test_a_callee_that_ends_its_worker_costs_its_request_alone(server: Server) -> None:
    traffic = Traffic(lambda: ask(server, "a b leaf x"), threads=3)
    traffic.wait_for(10)
    status, text = ask(server, "c leaf die")
    assert status == 500 or "ended the worker" in text
    traffic.wait_for(10)
    assert {answer for answer in traffic.stop()} == {(200, "<x>")}


def test_models_load_and_unload_others(server: Server) -> None:
    ready = "is_model_ready('spare')"
    steps = f"{ready};unload_model('spare');{ready};load_model('spare');{ready}"
    assert ask(server, steps, "manager") == (200, "True|None|False|None|True")
    assert ask(server, "echo x", "spare") == (200, "x")
    versions = "is_model_ready('spare', '1');is_model_ready('spare', '2');is_model_ready('nobody')"
    assert ask(server, versions, "manager") == (200, "True|False|False")


def test_a_model_loads_another_with_a_configuration(server: Server) -> None:
    config = server.call("GET", "/v2/models/spare/config")[1] | {"max_batch_size": 2}
    step = f"load_model('spare', config={json.dumps(config)!r})"
    assert ask(server, step, "manager") == (200, "None")
    assert server.call("GET", "/v2/models/spare/config")[1]["max_batch_size"] == 2


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("load_model('nobody')", "failed to load 'nobody', failed to poll from model repository"),
        ("load_model('spare', {'file:1/model.py': b'x'})", "files need the parameter 'config', t"),
        ("load_model('spare', {'file:1/model.py': 'x'})", "expected bytes, got str"),
        (
            "load_model('manager')",
            "cannot load 'manager': they would wait in a circle: manager",
        ),
        ("unload_model('manager')", "model 'manager' cannot unload 'manager': they would wait in "),
    ],
)
def test_what_a_model_cannot_load_is_an_exception(server: Server, step: str, said: str) -> None:
    status, answer = ask(server, step, "manager")
    assert status == 200 and said in answer
