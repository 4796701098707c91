"""Iterative sequences: new requests join those that run, as their clients see it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.repository.folders import add
from tests.serve.server import Server

#: Executes a request as often as its input says. Answers: how often, and the largest batch.
MODEL = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left, self.most, self.turns = {}, {}, 0

    def execute(self, requests):
        time.sleep(0.02)
        self.turns += 1
        assert len(requests) <= 4
        return [self.one(request, len(requests)) for request in requests]

    def one(self, request, together):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        id = request.correlation_id()
        if request.flags():
            self.left[id], self.most[id] = [], 0
        self.left[id].append(self.turns)
        self.most[id] = max(self.most[id], together)
        if x[0, 0] < 0 and len(self.left[id]) == 3:
            os._exit(7)
        if x[0, 0] == 99.0:
            raise ValueError("poison")
        if len(self.left[id]) < abs(x[0, 0]):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        said = np.array([[len(self.left.pop(id)), self.most.pop(id)]], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", said)])
"""
CONFIG = """backend: "python"
max_batch_size: 4
sequence_batching { iterative_sequence: true }
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
parameters { key: "slo_ms" value: { string_value: "30000" } }
"""
PLAIN = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one)]) for one in x]
"""
PLAIN_CONFIG = CONFIG.replace("sequence_batching { iterative_sequence: true }\n", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("iterations")
    sample = {"interlace.toml": "[sample]\nx = [2]\n"}
    add(root, "turns", {"config.pbtxt": CONFIG, "1/model.py": MODEL, **sample})
    add(root, "plain", {"config.pbtxt": PLAIN_CONFIG, "1/model.py": PLAIN, **sample})
    made = Server(root, cache, "--cores", "0")
    try:
        yield made.wait_ready()
    finally:
        made.kill()


def ask(server: Server, *values: float, model: str = "turns") -> tuple[int, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    status, answer = server.call("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
    return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]


def test_new_requests_join_those_that_run(server: Server) -> None:
    assert ask(server, 1, 0) == (200, [1, 1])
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, server, 50, 0)
        time.sleep(0.3)
        began_s = time.monotonic()
        assert ask(server, 2, 0) == (200, [2, 2])
        took_s = time.monotonic() - began_s
        assert not long.done() and took_s < 0.5
        assert long.result() == (200, [50, 2])


def test_no_more_rows_join_than_a_batch_may_have(server: Server) -> None:
    with ThreadPoolExecutor(9) as threads:
        answers = list(threads.map(lambda count: ask(server, count, 0), [20] * 9))
    assert {status for status, _ in answers} == {200}
    assert {turns for _, (turns, _) in answers} == {20}
    assert max(most for _, (_, most) in answers) == 4


def test_requests_of_other_shapes_take_turns(server: Server) -> None:
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, server, 20, 0)
        time.sleep(0.1)
        assert ask(server, 3, 0, 0) == (200, [3, 1])
        assert long.result() == (200, [20, 1])


def test_other_models_of_the_partition_run_between_iterations(server: Server) -> None:
    assert ask(server, 1, 2, model="plain") == (200, [1, 2])
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(ask, server, 60, 0)
        time.sleep(0.2)
        count = 0
        while not long.done():
            assert ask(server, 1, 2, model="plain") == (200, [1, 2])
            count += 1
        assert long.result() == (200, [60, 1]) and count > 5


def test_a_request_that_raises_fails_alone_unless_others_had_begun(server: Server) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda value: ask(server, value, 0), [1, 99, 1, 1]))
    assert [status for status, _ in answers].count(500) == 1
    assert "poison" in answers[1][1]
    assert ask(server, 2, 0)[0] == 200


def test_a_worker_that_dies_fails_those_that_had_begun(server: Server) -> None:
    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(ask, server, 40, 0) for _ in range(2)]
        time.sleep(0.2)
        status, _ = ask(server, -9, 0)
        assert status != 200
        assert all(one.result()[0] in (200, 500, 503) for one in others)
    for _ in range(50):
        status, answer = ask(server, 2, 0)
        if status == 200:
            break
        time.sleep(0.1)
    assert (status, answer) == (200, [2, 1])


def test_a_client_that_goes_away_ends_its_iterations(server: Server) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10.0)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [5000, 0]}
    connection.request("POST", "/v2/models/turns/infer", json.dumps({"inputs": [tensor]}))
    time.sleep(0.3)
    connection.close()
    time.sleep(0.5)
    assert ask(server, 3, 0) == (200, [3, 1])


def test_many_clients_for_a_while(server: Server) -> None:
    errors: list[Any] = []

    def client(seed: int) -> None:
        for count in range(1, 8):
            length = 2 + (seed + count) % 2
            status, answer = ask(server, (seed * 7 + count) % 5 + 1, *[0] * (length - 1))
            if status != 200 or answer[0] != (seed * 7 + count) % 5 + 1:
                errors.append((status, answer))

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(60.0)
    assert not errors
