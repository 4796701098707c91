"""Decoupled models of the Python backend: streams over HTTP and gRPC, their ends and failures."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest

from interlace.device.cpu.execution import pack_strings
from interlace.proto.messages import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tests.repository.folders import add
from tests.serve.server import Server
from tests.server.fakes import wait_until

MODEL = """
import os
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
CALLED = {"calls": "upper", "refused": "other"}


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            word = pb_utils.get_input_tensor_by_name(request, "WORD").as_numpy()[0].decode()
            what, _, count = word.partition(" ")
            sender = request.get_response_sender()
            if what == "threads":  # the sender outlives execute
                threading.Thread(target=self.respond, args=(sender, what, int(count))).start()
            elif what == "iterates":  # over the responses of another model
                self.iterate(sender, count)
            elif what == "dropped":
                del sender
            else:
                self.respond(sender, what, int(count or 0))

    def respond(self, sender, what, count):
        for number in range(count):
            text = "x" * 100_000 if what == "flood" else f"{what} {number}"
            if what in CALLED:
                text = self.called(CALLED[what], text)
            output = pb_utils.Tensor("SAID", np.array([text.encode()], object))
            last = FINAL if what == "with" and number == count - 1 else 0
            sender.send(pb_utils.InferenceResponse([output]), last)
            until = time.monotonic() + (5 if what == "patient" else 0)
            while time.monotonic() < until and not sender.is_cancelled():
                time.sleep(0.002)
            if last != FINAL and sender.is_cancelled():  # after the last Triton would crash
                print(f"CANCELLED at {number} of {count}", flush=True)
                break
            time.sleep(0.02 if what == "slow" else 0)
        if what == "raise":
            raise ValueError("cannot go on")
        if what == "die":
            os._exit(4)
        if what == "error":
            error = pb_utils.TritonError("no more", pb_utils.TritonError.UNSUPPORTED)
            sender.send(pb_utils.InferenceResponse(error=error), FINAL)
        elif what != "with":
            sender.send(flags=FINAL)

    def iterate(self, sender, said):
        word = pb_utils.Tensor("WORD", np.array([said.encode()], object))
        request = pb_utils.InferenceRequest(
            model_name="other", inputs=[word], requested_output_names=["SAID"])
        number = 0
        responses = request.exec(decoupled=True)
        for response in responses:
            if response.has_error():
                sender.send(pb_utils.InferenceResponse(error=response.error()), FINAL)
                return
            if response.output_tensors():  # the last one may have none
                sender.send(response)
                number += 1
            if number == {"slow": 3, "patient": 1}.get(said.split()[0]):
                responses.cancel()
        sender.send(flags=FINAL)

    def called(self, name, text):
        word = pb_utils.Tensor("WORD", np.array([text.encode()], object))
        response = pb_utils.InferenceRequest(
            model_name=name, inputs=[word], requested_output_names=["SAID"]).exec()
        if response.has_error():
            return response.error().message()
        return response.output_tensors()[0].as_numpy()[0].decode()
"""
UPPER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        words = [pb_utils.get_input_tensor_by_name(one, "WORD").as_numpy() for one in requests]
        said = [pb_utils.Tensor("SAID", np.array([one[0].upper()], object)) for one in words]
        return [pb_utils.InferenceResponse([one]) for one in said]
"""
CONFIG = """backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
PATH = "/v2/models/words/generate_stream"
STREAM = "[stream]\nfirst_response_ms = 20000\ngap_ms = 1\n"
SAMPLE = '[sample]\nWORD = { value = ["say 2"] }\n'


class Served(NamedTuple):
    server: Server
    channel: grpc.Channel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("decoupled")
    settings = {"interlace.toml": STREAM + SAMPLE}
    add(root, "words", {"config.pbtxt": CONFIG, "1/model.py": MODEL, **settings})
    add(root, "other", {"config.pbtxt": CONFIG, "1/model.py": MODEL, **settings})
    plain = CONFIG.replace("decoupled: true", "decoupled: false")
    add(root, "upper", {"config.pbtxt": plain, "1/model.py": UPPER})
    server = Server(root, cache, "--trust-models", "all")
    try:
        server.wait_ready()
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            yield Served(server, channel)
    finally:
        server.kill()


def events(served: Served, word: str) -> tuple[int, list[Any]]:
    """The status of generate_stream, and its events."""
    status, text = served.server.call("POST", PATH, {"WORD": word, "id": "r1"})
    if status != 200:
        return status, [text["error"]]
    lines = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    return status, [line.get("SAID", line.get("error")) for line in lines]


def asked(word: str, id: str = "", **parameters: bool) -> Any:
    request = ModelInferRequest(model_name="words", id=id)
    request.inputs.add(name="WORD", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(pack_strings(np.array([word], object)))
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    return request


def streamed(served: Served, requests: Iterable[Any]) -> Iterator[Any]:
    method = served.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        ModelInferRequest.SerializeToString,
        ModelStreamInferResponse.FromString,
    )
    call: Iterator[Any] = method(iter(requests), timeout=60.0)
    return call


def said(message: Any) -> tuple[str, str, bool]:
    """The id, what was said or went wrong, and whether it is the last."""
    answer = message.infer_response
    texts = [data[4:].decode() for data in answer.raw_output_contents]
    final = answer.parameters["triton_final_response"].bool_param
    return answer.id, message.error_message or "".join(texts), final


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("say 3", ["say 0", "say 1", "say 2"]),
        ("with 2", ["with 0", "with 1"]),
        ("threads 2", ["threads 0", "threads 1"]),
        ("say 100", [f"say {number}" for number in range(100)]),
        ("say 0", []),
        ("calls 3", ["CALLS 0", "CALLS 1", "CALLS 2"]),
        ("refused 1", ["BLS doesn't support models with decoupled transaction policy"]),
        ("iterates say 3", ["say 0", "say 1", "say 2"]),
        ("iterates with 100", [f"with {number}" for number in range(100)]),
        ("iterates say 0", []),
        ("iterates error 2", ["error 0", "error 1", "no more"]),
        ("iterates raise 1", ["raise 0", "Failed to process the request(s) for model 'other', me"]),
        ("error 1", ["error 0", "no more"]),
        ("raise 1", ["raise 0", "Failed to process the request(s) for model 'words', message: Va"]),
        ("die 1", ["die 0", "the worker process ended with exit code 4"]),
    ],
)
def test_each_response_is_an_event(served: Served, word: str, expected: list[str]) -> None:
    status, found = events(served, word)
    assert status == 200 and len(found) == len(expected)
    for one, text in zip(found, expected, strict=True):
        assert text in one


def test_a_caller_may_want_no_further_responses(served: Served) -> None:
    before = served.server.text.count("CANCELLED")
    status, found = events(served, "iterates slow 5000")
    assert status == 200 and 3 <= len(found) < 100
    wait_until(lambda: served.server.text.count("CANCELLED") > before)
    assert served.server.text.count("CANCELLED") == before + 1


def test_a_caller_has_a_response_before_the_next_is_sent(served: Served) -> None:
    status, found = events(served, "iterates patient 3")
    assert status == 200 and "patient 0" in found[0]
    wait_until(lambda: "CANCELLED at 0 of 3" in served.server.text)


def test_an_error_before_any_response_has_its_status(served: Served) -> None:
    assert events(served, "error 0") == (501, ["no more"])
    status, (text,) = events(served, "dropped")
    assert status == 500 and "let go of a response sender" in text


def test_generate_takes_one_response(served: Served) -> None:
    path = "/v2/models/words/generate"
    for word in ("say 1", "with 1"):
        status, body = served.server.call("POST", path, {"WORD": word, "id": "r2"})
        assert (status, body["SAID"], body["id"]) == (200, f"{word[:-1]}0", "r2")
    for word in ("say 2", "say 0"):
        status, body = served.server.call("POST", path, {"WORD": word})
        assert status == 500 and "generate expects model to produce exactly 1" in body["error"]


def test_infer_without_a_stream_is_refused_in_tritons_words(served: Served) -> None:
    tensor = {"name": "WORD", "datatype": "BYTES", "shape": [1], "data": ["say 1"]}
    status, body = served.server.call("POST", "/v2/models/words/infer", {"inputs": [tensor]})
    text = "doesn't support models with decoupled transaction policy"
    assert (status, body["error"]) == (501, f"HTTP end point {text}")
    infer = served.channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        ModelInferRequest.SerializeToString,
        ModelInferResponse.FromString,
    )
    with pytest.raises(grpc.RpcError) as caught:
        infer(asked("say 1"))
    assert caught.value.details() == f"ModelInfer RPC {text}"
    config = served.server.call("GET", "/v2/models/words/config")[1]
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_a_grpc_stream_says_which_response_is_the_last(served: Served) -> None:
    requests = [asked("with 2", "a"), asked("say 1", "b", triton_enable_empty_final_response=True)]
    found = sorted(map(said, streamed(served, requests)))
    assert found == [
        ("a", "with 0", False), ("a", "with 1", True),
        ("b", "", True), ("b", "say 0", False),
    ]  # fmt: skip
    found = list(map(said, streamed(served, [asked("die 1", "c"), asked("say 1", "d")])))
    by_id = {id: [text for one, text, _ in found if one == id] for id in ("c", "d")}
    assert by_id["c"][0] == "die 0" and "exit code 4" in by_id["c"][1] and len(by_id["c"]) == 2
    assert len(by_id["d"]) == 1


def test_a_client_that_goes_away_ends_its_stream(served: Served) -> None:
    server = served.server
    before = server.text.count("CANCELLED")
    call = streamed(served, [asked("slow 5000")])
    assert said(next(call))[1] == "slow 0"
    call.cancel()  # type: ignore[attr-defined]
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60.0)
    connection.request(
        "POST", "/v2/models/words/generate_stream", json.dumps({"WORD": "calls 5000"})
    )
    assert connection.getresponse().read(6) == b"data: "
    connection.close()
    wait_until(lambda: server.text.count("CANCELLED") >= before + 2)
    assert events(served, "say 1") == (200, ["say 0"])


def test_a_client_that_does_not_read_holds_a_bounded_number_of_responses(served: Served) -> None:
    body = json.dumps({"WORD": "flood 100000"}).encode()
    with socket.create_connection(("127.0.0.1", served.server.http_port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        found = served.server.wait_for(r"CANCELLED at (\d+) of 100000")
        assert int(found[1]) < 150
        assert events(served, "say 1") == (200, ["say 0"])
    call = streamed(served, [asked("flood 200000")])
    next(call)
    found = served.server.wait_for(r"CANCELLED at (\d+) of 200000")
    assert int(found[1]) < 300
    messages = list(map(said, call))
    assert len(messages) >= 32 and "its client has 32 responses and reads none" in messages[-1][1]


def test_metrics_count_first_responses_and_gaps(served: Served) -> None:
    port = served.server.metrics_port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    pattern = r'interlace_stream_{}_(within|missed)_total{{model="words",version="1"}} (\d+)'
    first = dict(re.findall(pattern.format("first"), text))
    gap = dict(re.findall(pattern.format("gap"), text))
    assert int(first["within"]) > 5 and first["missed"] == "0" and int(gap["missed"]) > 0
