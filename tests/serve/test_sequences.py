"""Sequences over HTTP and gRPC: state in a worker's code, state that the server keeps."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from tests.repository.folders import add
from tests.serve.server import Server

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        ids = [request.correlation_id() for request in requests]
        assert len(set(ids)) == len(ids), "two requests of one sequence"
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def given(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]

        corrid = given("CORRID").decode()
        assert corrid == str(request.correlation_id()) and given("READY")
        assert request.flags() == given("START") + 2 * given("END")
        if given("START"):
            self.sums[corrid] = 0
        self.sums[corrid] += given("x")  # fails where the sequence did not begin
        total = self.sums.pop(corrid) if given("END") else self.sums[corrid]
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", np.array([[total]], np.float32))])
"""
TENSORS = """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "slo_ms" value: { string_value: "20000" } }
"""
CONTROLS = """  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }
  ]
"""
OLDEST = "  oldest { max_candidate_sequences: 4 }\n  max_sequence_idle_microseconds: 2000000\n"
STATE = """  state [ { input_name: "total" output_name: "total_out" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { data_type: TYPE_FP32 dims: [ 1 ] data_file: "total" name: "first" } } ]
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 100 ] } ] }
  ]
"""


def accumulator() -> bytes:
    """``sum = x + total + START``, which is also ``total_out``."""
    from onnx import TensorProto, helper

    def tensor(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 1])

    nodes = [
        helper.make_node("Sum", ["x", "total", "START"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["total_out"]),
    ]
    inputs, outputs = map(tensor, ("x", "total", "START")), map(tensor, ("sum", "total_out"))
    graph = helper.make_graph(nodes, "g", [*inputs], [*outputs])
    opset = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("sequences")
    batching = f"sequence_batching {{\n{OLDEST}{CONTROLS}}}\n"
    add(
        root,
        "code",
        {"config.pbtxt": f'backend: "python"\n{TENSORS}{batching}', "1/model.py": CODE},
    )
    batching = f"sequence_batching {{\n  direct {{ }}\n{STATE}}}\n"
    add(root, "graph", {"config.pbtxt": TENSORS + batching})
    (root / "graph" / "1").mkdir()
    (root / "graph" / "1" / "model.onnx").write_bytes(accumulator())
    (root / "graph" / "initial_state").mkdir()
    (root / "graph" / "initial_state" / "total").write_bytes(struct.pack("<f", 1000.0))
    made = Server(root, cache, "--trust-models", "all")
    try:
        yield made.wait_ready()
    finally:
        made.kill()


def step(
    server: Server,
    id: int | str,
    x: float,
    start: bool = False,
    end: bool = False,
    to: str = "code",
) -> tuple[int, Any]:
    """The status, and the sum or the error."""
    parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}
    body = {"inputs": [tensor], "parameters": parameters}
    status, answer = server.call("POST", f"/v2/models/{to}/infer", body)
    if status != 200:
        return status, answer["error"]
    (output,) = answer["outputs"]
    assert output["name"] == "sum"
    return status, output["data"][0]


@pytest.mark.parametrize(("to", "first"), [("code", 0.0), ("graph", 1100.0)])
def test_sequences_side_by_side_keep_their_states(server: Server, to: str, first: float) -> None:
    ids: list[int | str] = [1, "a", 2, "b"]

    def run(id: int | str) -> list[float]:
        return [step(server, id, x, x == 1, x == 12, to)[1] for x in range(1, 13)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run, ids))
    assert found == [[first + x * (x + 1) / 2 for x in range(1, 13)]] * 4


def test_flags_and_ids_are_checked_in_tritons_words(server: Server) -> None:
    text = "must specify the START flag on the first request of the sequence"
    status, error = step(server, 77, 1.0)
    assert status == 400 and error.endswith(text)
    assert step(server, 77, 1.0, start=True, end=True) == (200, 1.0)
    assert step(server, 77, 1.0)[1].endswith(text)  # it has ended
    status, error = step(server, 0, 1.0, start=True)
    assert status == 400 and "must specify a non-zero or non-empty correlation ID" in error
    assert step(server, 78, 1.0, start=True) == (200, 1.0)
    assert step(server, 78, 5.0, start=True, end=True) == (200, 5.0)  # a new one of that id


def test_clients_see_neither_control_tensors_nor_states(server: Server) -> None:
    for to in ("code", "graph"):
        metadata = server.call("GET", f"/v2/models/{to}")[1]
        assert [one["name"] for one in metadata["inputs"]] == ["x"]
        assert [one["name"] for one in metadata["outputs"]] == ["sum"]
    config = server.call("GET", "/v2/models/graph/config")[1]
    assert config["sequence_batching"]["state"][0]["input_name"] == "total"


def test_grpc_parameters_name_the_sequence(server: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            ModelInferRequest.SerializeToString,
            ModelInferResponse.FromString,
        )
        for to, first in (("code", 0.0), ("graph", 1100.0)):
            for place in range(3):
                request = ModelInferRequest(model_name=to)
                request.parameters["sequence_id"].int64_param = 9
                request.parameters["sequence_start"].bool_param = place == 0
                request.parameters["sequence_end"].bool_param = place == 2
                request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
                request.raw_input_contents.append(struct.pack("<f", 1.0))
                response = infer(request, timeout=60.0)
                (data,) = response.raw_output_contents
                assert struct.unpack("<f", data) == (first + place + 1,)


def test_an_idle_sequence_ends_and_others_wait_for_its_slot(server: Server) -> None:
    for id in range(10, 14):
        assert step(server, id, 1.0, start=True) == (200, 1.0)
    began_s = time.monotonic()
    assert step(server, 14, 2.0, start=True, end=True) == (200, 2.0)
    assert time.monotonic() - began_s > 0.3, "there were four candidates"
    assert step(server, 10, 1.0)[0] == 400


def test_a_death_loses_the_states_of_code_and_no_other(server: Server) -> None:
    assert step(server, 20, 1.0, start=True)[0] == 200
    assert step(server, 21, 1.0, start=True, to="graph") == (200, 1101.0)
    before = server.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    while set(server.workers()) & set(before):
        time.sleep(0.02)
    status, error = step(server, 20, 1.0)
    assert status == 500 and "the state of sequence 20 of model 'code' is lost" in error
    assert step(server, 20, 3.0, start=True, end=True) == (200, 3.0)
    assert step(server, 21, 1.0, end=True, to="graph") == (200, 1102.0)
