"""Models that hang: their callers are told in time over HTTP and gRPC, and nobody else notices."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from bench.attack.repository import write_model
from tests.serve.conftest import Start
from tests.server.fakes import wait_until

#: Hangs for one input; samples never hold such a value.
HANG = "(x.max() > 1e6) and time.sleep(600.0)"
#: Of a request that hangs: past before its worker is taken for dead.
SLO_MS = 500.0


def test_a_hang_is_a_504_soon_after_the_deadline_and_costs_one_worker(
    root: Path, start: Start
) -> None:
    write_model(root, "hangs", extra=HANG)
    server = start().wait_ready()
    workers = server.workers()
    status, body = server.infer("hangs", 2e6, slo_ms=SLO_MS)
    assert (status, body["reason"]) == (504, "deadline")
    assert "far longer than predicted" in body["error"]
    wait_until(lambda: set(server.workers()) != set(workers))
    assert len(set(server.workers()) & set(workers)) == len(workers) - 1, "one worker is replaced"
    assert server.infer("hangs")[1]["outputs"][0]["data"] == [2.0] * 4
    assert server.end() == 0


def test_over_grpc_too_and_the_memory_of_its_inputs_is_used_again(root: Path, start: Start) -> None:
    write_model(root, "hangs", extra=HANG)
    server = start().wait_ready()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for _ in range(2):
            given = grpcclient.InferInput("x", [1, 4], "FP32")
            given.set_data_from_numpy(np.full((1, 4), 2e6, np.float32))
            with pytest.raises(InferenceServerException, match="far longer than predicted"):
                client.infer("hangs", [given], parameters={"slo_ms": SLO_MS}, client_timeout=30.0)
            given.set_data_from_numpy(np.ones((1, 4), np.float32))
            reply = client.infer("hangs", [given])
            assert reply.as_numpy("y").tolist() == [[2.0] * 4]
    assert server.end() == 0
