"""Models that hang: their callers are told in time over HTTP and gRPC, and nobody else notices."""

import time
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from bench.attack.repository import write_model
from tests.serve.conftest import Start

#: Hangs for one input; samples never hold such a value.
HANG = "(x.max() > 1e6) and time.sleep(600.0)"


def test_a_hang_is_a_504_soon_after_the_deadline_and_costs_one_worker(
    root: Path, start: Start
) -> None:
    write_model(root, "hangs", extra=HANG, slo_ms=200.0)
    server = start().wait_ready()
    workers = server.workers()
    began = time.monotonic()
    status, body = server.infer("hangs", 2e6)
    took_s = time.monotonic() - began
    assert (status, body["reason"]) == (504, "deadline") and "far longer than predicted" in str(
        body
    )
    assert 0.2 <= took_s < 5.0
    while time.monotonic() < began + 25.0 and set(server.workers()) == set(workers):
        time.sleep(0.1)
    assert len(set(server.workers()) & set(workers)) == len(workers) - 1, "one worker is replaced"
    assert server.infer("hangs")[1]["outputs"][0]["data"] == [2.0] * 4
    assert server.end() == 0


def test_over_grpc_too_and_the_memory_of_its_inputs_is_used_again(root: Path, start: Start) -> None:
    write_model(root, "hangs", extra=HANG, slo_ms=200.0)
    server = start().wait_ready()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for _ in range(2):
            given = grpcclient.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(np.full((1, 4), 2e6, np.float32))
            began = time.monotonic()
            try:
                client.infer("hangs", [given], client_timeout=20.0)
            except InferenceServerException as error:
                assert "far longer than predicted" in str(error) or "timeout" in str(error)
            assert time.monotonic() - began < 10.0
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            ends = time.monotonic() + 30.0
            while time.monotonic() < ends:
                try:
                    reply = client.infer("hangs", [given])
                    break
                except InferenceServerException:
                    time.sleep(0.1)
            assert reply.as_numpy("y").tolist() == [[2.0] * 4]
    assert server.end() == 0
