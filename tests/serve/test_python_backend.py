"""Models of Triton's Python backend over HTTP and gRPC, and when they fail.

The models have the shapes of those that python_backend shows as examples.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from interlace.device.cpu.execution import pack_strings
from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from tests.processes import alive
from tests.repository.folders import add
from tests.serve.conftest import Start
from tests.serve.server import Server, Traffic
from tests.server.fakes import wait_until

ADD_SUB = """
import argparse
import json
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name in ("INPUT0", "INPUT1"):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ("OUTPUT0", "OUTPUT1"):
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        argparse.ArgumentParser().parse_args()  # there are none, as in Triton
        config = json.loads(args["model_config"])
        types = [pb_utils.get_output_config_by_name(config, f"OUTPUT{i}") for i in range(2)]
        self.types = [pb_utils.triton_string_to_numpy(one["data_type"]) for one in types]

    def execute(self, requests):
        responses = []
        for request in requests:
            first, second = [
                pb_utils.get_input_tensor_by_name(request, f"INPUT{i}").as_numpy() for i in range(2)
            ]
            results = first + second, first - second
            tensors = [
                pb_utils.Tensor(f"OUTPUT{i}", one.astype(kind))
                for i, (one, kind) in enumerate(zip(results, self.types))
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"""
IMAGES = """
import numpy as np
import triton_python_backend_utils as pb_utils
from . import means
import sizes


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            pixels = (image[:, :: sizes.STEP] / np.float32(255) - means.MEAN).transpose(0, 3, 1, 2)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)]))
        return responses
"""
IMAGES_CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, 4, 3 ] } ]
output [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ 3, -1, 4 ] } ]
"""
WORDS = """
import multiprocessing
import os
import subprocess
import sys
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        words = [pb_utils.get_input_tensor_by_name(r, "WORD").as_numpy() for r in requests]
        if any(b"short list" in word for word in words):
            return []
        return [self.answer(request, word) for request, word in zip(requests, words)]

    def answer(self, request, word):
        said = word[0, 0]
        print("WORD", said, flush=True)
        if said == b"write":
            np.save("kept.npy", word)
            subprocess.run("echo from a program > kept.txt", shell=True, check=True)
            kept = [open("kept.txt").read().encode(), np.load("kept.npy", None, True)[0, 0]]
            return pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([kept], object))])
        if said == b"raise":
            raise ValueError("cannot do this")
        if said == b"exit":
            sys.exit(3)
        if said == b"die":
            os._exit(4)
        if said == b"interrupt":
            raise KeyboardInterrupt("of nobody")
        if said == b"surrogate":
            raise OSError("no file \\udcff")
        if said == b"processes":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
            (child,) = multiprocessing.active_children()
            time.sleep(0.2)
            child.terminate()
            child.join(10)
            ended = subprocess.Popen(["sleep", "600"])
            ended.terminate()
            left = subprocess.Popen(["sleep", "600"])
            said = f"{child.exitcode} {ended.wait(10)} {left.pid}"
            text = pb_utils.Tensor("WORD", np.array([[said]], object))
            return pb_utils.InferenceResponse([text])
        if said == b"fork":
            os.fork()  # both return
        code = getattr(pb_utils.TritonError, said.decode(errors="replace"), None)
        if code is not None:
            error = pb_utils.TritonError(f"{said.decode()} it is", code)
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        times = pb_utils.get_input_tensor_by_name(request, "TIMES")
        count = 1 if times is None else int(times.as_numpy()[0, 0])
        asked = f"{request.parameters()} {request.timeout()}"
        heads = np.array([[request.request_id() or asked]], object)
        tensors = [pb_utils.Tensor("WORD", word * count), pb_utils.Tensor("HEAD", heads)]
        if said == b"parameters":
            parameters = {"kind": "word", "count": 1, "good": True}
            return pb_utils.InferenceResponse(tensors, parameters=parameters)
        return pb_utils.InferenceResponse(tensors)

    def is_ready(self):
        return not os.path.exists(os.path.join(os.path.dirname(__file__), "busy"))

    def finalize(self):
        print("WORDS ENDS", flush=True)
"""
WORDS_CONFIG = """backend: "python"
max_batch_size: 16
input [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "TIMES" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]
output [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] },
         { name: "HEAD" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "slo_ms" value: { string_value: "30000" } }
"""


class Shared(NamedTuple):
    root: Path
    server: Server
    infer: Any  #: gRPC's ModelInfer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Shared]:
    root = tmp_path_factory.mktemp("python")
    add(root, "add_sub", {"config.pbtxt": 'backend: "python"', "1/model.py": ADD_SUB})
    siblings = {"1/means.py": "MEAN = 0.5\n", "sizes.py": "STEP = 2\n"}
    add(root, "images", {"config.pbtxt": IMAGES_CONFIG, "1/model.py": IMAGES, **siblings})
    add(root, "words", {"config.pbtxt": WORDS_CONFIG, "1/model.py": WORDS, "1/model.pt": ""})
    server = Server(root, cache, "--trust-models", "all")
    try:
        server.wait_ready()
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            method = "/inference.GRPCInferenceService/ModelInfer"
            infer = channel.unary_unary(
                method, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
            )
            yield Shared(root, server, infer)
    finally:
        server.kill()


def word(shared: Shared, said: str, **body: object) -> tuple[int, Any]:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1, 1], "data": [said]}
    asked = {"inputs": [tensor], **body}
    return shared.server.call("POST", "/v2/models/words/infer", asked)


def word_by_grpc(shared: Shared, said: bytes, **fields: Any) -> dict[str, list[bytes]]:
    request = ModelInferRequest(model_name="words", **fields)
    request.inputs.add(name="WORD", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(pack_strings(np.array([[said]], object)))
    response = shared.infer(request, timeout=100.0)
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: [data[4:]] for output, data in pairs}


def test_a_model_without_a_config_describes_itself(shared: Shared) -> None:
    values = {"INPUT0": [4.0, 3.0, 2.0, 1.0], "INPUT1": [1.0] * 4}
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [4], "data": data}
        for name, data in values.items()
    ]
    status, body = shared.server.call("POST", "/v2/models/add_sub/infer", {"inputs": inputs})
    assert status == 200
    assert {one["name"]: one["data"] for one in body["outputs"]} == {
        "OUTPUT0": [5.0, 4.0, 3.0, 2.0],
        "OUTPUT1": [3.0, 2.0, 1.0, 0.0],
    }
    config = shared.server.call("GET", "/v2/models/add_sub/config")[1]
    assert config["backend"] == "python" and config["max_batch_size"] == 0
    assert [one["name"] for one in config["input"]] == ["INPUT0", "INPUT1"]


def test_a_model_with_siblings_prepares_images(shared: Shared) -> None:
    data = [255] * (2 * 4 * 3)
    tensor = {"name": "IMAGE", "datatype": "UINT8", "shape": [1, 2, 4, 3], "data": data}
    status, body = shared.server.call("POST", "/v2/models/images/infer", {"inputs": [tensor]})
    (output,) = body["outputs"]
    assert status == 200 and output["shape"] == [1, 3, 1, 4] and set(output["data"]) == {0.5}


def test_strings_parameters_and_optional_inputs_reach_the_model(shared: Shared) -> None:
    status, body = word(shared, "ünï", id="r7")
    assert status == 200
    assert [one["data"] for one in body["outputs"]] == [["ünï"], ["r7"]]
    times = {"name": "TIMES", "datatype": "INT32", "shape": [1, 1], "data": [2]}
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1, 1], "data": ["ab"]}
    asked = {
        "inputs": [tensor, times],
        "parameters": {"top": 3, "slo_ms": 20_000, "timeout": 9_000_000},
        "outputs": [{"name": "HEAD"}, {"name": "WORD"}],
    }
    status, body = shared.server.call("POST", "/v2/models/words/infer", asked)
    assert [one["data"] for one in body["outputs"]] == [['{"top":3} 9000000'], ["abab"]]
    zeros = word_by_grpc(shared, b"a\0\0", id="r8")
    assert zeros == {"WORD": [b"a\0\0"], "HEAD": [b"r8"]}


def test_models_write_to_their_working_directory_and_print_when_they_serve(shared: Shared) -> None:
    before = shared.server.text.count("WORD b'")  # not what is printed while it is measured
    status, body = word(shared, "write")
    assert (status, body["outputs"][0]["data"]) == (200, ["from a program\n", "write"])
    wait_until(lambda: "WORD b'write'" in shared.server.text)
    assert before < 20
    assert shared.server.text.count("WORD b'") == before + 1


def test_parameters_of_a_response_reach_its_client(shared: Shared) -> None:
    given = {"kind": "word", "count": 1, "good": True}
    assert word(shared, "parameters")[1]["parameters"] == given
    text = word(shared, "parameters", parameters={"binary_data_output": True})[1]
    assert json.JSONDecoder().raw_decode(text)[0]["parameters"] == given
    assert "parameters" not in word(shared, "none")[1]
    status, body = shared.server.call("POST", "/v2/models/words/generate", {"WORD": "parameters"})
    assert status == 200 and {name: body[name] for name in given} == given
    request = ModelInferRequest(model_name="words")
    request.inputs.add(name="WORD", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(pack_strings(np.array([["parameters"]], object)))
    found = shared.infer(request, timeout=100.0).parameters
    values = found["kind"].string_param, found["count"].int64_param, found["good"].bool_param
    assert values == ("word", 1, True)


def test_a_model_is_ready_while_its_code_says_so(shared: Shared) -> None:
    busy = shared.root / "words" / "1" / "busy"

    def ready(version: str = "") -> int:
        return shared.server.call("GET", f"/v2/models/words{version}/ready")[0]

    for status, change in ((400, busy.touch), (200, busy.unlink)):
        change()
        wait_until(lambda wanted=status: ready() == wanted)  # type: ignore[misc]
        assert ready("/versions/1") == status
        assert word(shared, "good")[0] == 200


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ("INTERNAL", 500, "INTERNAL"),
        ("NOT_FOUND", 404, "NOT_FOUND"),
        ("UNAVAILABLE", 503, "UNAVAILABLE"),
        ("UNSUPPORTED", 501, "UNIMPLEMENTED"),
        ("INVALID_ARG", 400, "INVALID_ARGUMENT"),
        ("UNKNOWN", 400, "UNKNOWN"),
        ("ALREADY_EXISTS", 400, "ALREADY_EXISTS"),
        ("CANCELLED", 400, "CANCELLED"),
    ],
)
def test_errors_of_responses_have_tritons_statuses(
    shared: Shared, said: str, status: int, code: str
) -> None:
    found, body = word(shared, said)
    assert (found, body["error"]) == (status, f"{said} it is")
    with pytest.raises(grpc.RpcError) as caught:
        word_by_grpc(shared, said.encode())
    assert caught.value.code().name == code and caught.value.details() == f"{said} it is"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("raise", "ValueError: cannot do this (model.py, line 28)"),
        ("exit", "SystemExit: 3 (model.py, line 30)"),
        ("surrogate", r"OSError: no file \udcff (model.py, line 36)"),
        ("short list", "Number of InferenceResponse objects do not match"),
    ],
)
def test_what_fails_beside_good_requests_fails_alone(shared: Shared, said: str, text: str) -> None:
    before = shared.server.workers()
    said_all = ["good", "NOT_FOUND"] * 3
    with ThreadPoolExecutor(8) as threads:
        bad = threads.submit(word, shared, said)
        others = list(threads.map(lambda one: word(shared, one), said_all))
    status, body = bad.result()
    sentence = f"Failed to process the request(s) for model 'words', message: {text}"
    assert status == 500 and body["error"].startswith(sentence)
    wanted = [200 if one == "good" else 404 for one in said_all]
    assert [status for status, _ in others] == wanted
    assert shared.server.workers() == before


def test_what_is_no_exception_of_python_fails_its_request_alone(shared: Shared) -> None:
    before = shared.server.workers()
    status, body = word(shared, "interrupt")
    assert status == 500 and "KeyboardInterrupt: of nobody" in body["error"]
    assert shared.server.workers() == before


def test_a_process_that_a_model_forks_and_lets_go_on_answers_nothing(shared: Shared) -> None:
    before = shared.server.workers()
    for _ in range(4):
        assert word(shared, "fork")[0] == 200
        assert {word(shared, "good")[0] for _ in range(8)} == {200}
    assert set(before) <= set(shared.server.workers())


def _wait_again(shared: Shared) -> None:
    traffic = Traffic(lambda: word(shared, "good"), threads=1)
    traffic.wait_for(5)
    assert traffic.stop()[-1][0] == 200


def test_a_death_costs_its_request_alone(shared: Shared) -> None:
    os.kill(shared.server.workers()[0], signal.SIGKILL)
    _wait_again(shared)
    status, body = word(shared, "die")
    assert status == 500 and "exit code 4" in body["error"]
    _wait_again(shared)


def test_unload_lets_the_model_finalize(shared: Shared) -> None:
    server = shared.server
    before = server.text.count("WORDS ENDS")
    assert server.call("POST", "/v2/repository/models/words/unload", {})[0] == 200
    wait_until(lambda: server.text.count("WORDS ENDS") > before)
    assert word(shared, "good")[0] == 404


def test_processes_of_models_can_be_ended_and_end_with_the_server(root: Path, start: Start) -> None:
    add(root, "words", {"config.pbtxt": WORDS_CONFIG, "1/model.py": WORDS})
    server = start().wait_ready()
    status, body = word(Shared(root, server, None), "processes")
    (said,) = body["outputs"][0]["data"]
    assert status == 200 and said.startswith("-15 -15 ")
    left = int(said.split()[-1])
    assert alive(left)
    assert server.end() == 0
    assert not alive(left)


def test_the_end_of_the_server_lets_models_finalize(root: Path, start: Start) -> None:
    slow = WORDS.replace("def finalize(self):", "def finalize(self):\n        time.sleep(0.8)")
    add(root, "words", {"config.pbtxt": WORDS_CONFIG, "1/model.py": f"import time\n{slow}"})
    server = start().wait_ready()
    before = server.text.count("WORDS ENDS")
    workers = len(server.workers())
    assert server.end() == 0
    assert server.text.count("WORDS ENDS") == before + workers
