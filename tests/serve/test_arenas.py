"""Workers, plans and gRPC processes come and go: nobody keeps the memory of those that went."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from tests.serve.conftest import Start
from tests.serve.server import Server, write_model
from tests.server.grpc.test_calls import raw
from tests.server.grpc.test_server import arenas_of

ROUNDS = 6


def infer(server: Server, model: str, value: float) -> list[float]:
    asked = ModelInferRequest(model_name=model)
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    asked.raw_input_contents.append(np.full(4, value, np.float32).tobytes())
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        data = raw(channel)(asked.SerializeToString(), timeout=30, wait_for_ready=True)
    given = ModelInferResponse.FromString(data).raw_output_contents[0]
    return [float(each) for each in np.frombuffer(given, np.float32)]


def grpc_process(server: Server) -> int:
    """The child of the server that serves gRPC."""
    parent = server.process.pid
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"interlace.server.grpc.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError("there is no gRPC process")


def replaced(kill: int, now: Callable[[], list[int]]) -> None:
    """Kill a process and wait until another stands in its place."""
    count = len(now())
    os.kill(kill, signal.SIGKILL)
    ends_s = time.monotonic() + 60.0
    while kill in now() or len(now()) < count:
        assert time.monotonic() < ends_s, "it was not replaced"
        time.sleep(0.05)


def arenas(server: Server) -> dict[str, tuple[int, int]]:
    """Descriptors and mappings of arenas, by process, and the most that a worker has."""
    return {
        "main": arenas_of(server.process.pid),
        "grpc": arenas_of(grpc_process(server)),
        "worker": max(arenas_of(pid) for pid in server.workers()),
    }


def settles(server: Server, before: dict[str, tuple[int, int]]) -> None:
    """Until nobody has more than one arena more than before, which a plan on its way may need."""
    ends_s = time.monotonic() + 30.0
    while True:
        seen = arenas(server)
        pairs = zip(sum(seen.values(), ()), sum(before.values(), ()), strict=True)
        if all(now <= then + 2 for now, then in pairs):
            return
        assert time.monotonic() < ends_s, f"{seen}, before {before}"
        time.sleep(0.1)


def one_round(server: Server, root: Path) -> None:
    """A worker dies, a model comes and goes, and both transports are used after each."""
    replaced(server.workers()[0], server.workers)
    assert infer(server, "m", 3.0) == [6.0] * 4
    assert server.infer("m", 3.0)[0] == 200
    write_model(root, "guest", factor=5.0)
    assert server.call("POST", "/v2/repository/models/guest/load", {})[0] == 200
    assert infer(server, "guest", 3.0) == [15.0] * 4
    assert server.call("POST", "/v2/repository/models/guest/unload", {})[0] == 200
    assert infer(server, "m", 4.0) == [8.0] * 4


def test_arenas_of_what_went_are_forgotten_everywhere(root: Path, start: Start) -> None:
    write_model(root, "m")
    server = start().wait_ready()
    one_round(server, root)
    before = arenas(server)
    for _ in range(ROUNDS):
        one_round(server, root)
    settles(server, before)


def test_workers_forget_the_arenas_of_grpc_processes_that_died(root: Path, start: Start) -> None:
    write_model(root, "m")
    server = start().wait_ready()
    assert infer(server, "m", 1.0) == [2.0] * 4
    before = arenas(server)
    for value in range(ROUNDS):
        os.kill(grpc_process(server), signal.SIGKILL)
        assert infer(server, "m", float(value)) == [2.0 * value] * 4
    settles(server, before)


class OneCore(Server):
    """A server that has one core for everything."""

    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from interlace.cli.main import main; main()"
    )


def test_on_one_core_grpc_needs_no_process(root: Path, cache: Path) -> None:
    write_model(root, "m")
    server = OneCore(root, cache)
    try:
        server.wait_ready()
        assert infer(server, "m", 3.0) == [6.0] * 4
        with pytest.raises(AssertionError, match="no gRPC process"):
            grpc_process(server)
        replaced(server.workers()[0], server.workers)
        assert infer(server, "m", 4.0) == [8.0] * 4
        assert server.stop() == 0
    finally:
        server.kill()
