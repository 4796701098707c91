"""Workers and plans come and go: no process keeps the memory of those that went."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

from bench.attack.repository import write_model
from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from tests.serve.conftest import Start
from tests.serve.server import Server
from tests.server.fakes import wait_until
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


def replaced(kill: int, now: Callable[[], list[int]]) -> None:
    """Kill a process and wait until another stands in its place."""
    count = len(now())
    os.kill(kill, signal.SIGKILL)
    wait_until(lambda: kill not in now() and len(now()) >= count)


def arenas(server: Server) -> dict[str, tuple[int, int]]:
    """Descriptors and mappings of arenas, by process, and the most that a worker has."""
    return {
        "main": arenas_of(server.process.pid),
        "worker": max(arenas_of(pid) for pid in server.workers()),
    }


def settles(server: Server, before: dict[str, tuple[int, int]]) -> None:
    """Until nobody has more than one arena more than before, which a plan on its way may need."""

    def settled() -> bool:
        pairs = zip(sum(arenas(server).values(), ()), sum(before.values(), ()), strict=True)
        return all(now <= then + 2 for now, then in pairs)

    wait_until(settled)


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


class OneCore(Server):
    """A server that has one core for everything."""

    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from interlace.cli.main import main; main()"
    )


def test_both_transports_on_one_core(root: Path, cache: Path) -> None:
    write_model(root, "m")
    server = OneCore(root, cache)
    try:
        server.wait_ready()
        assert infer(server, "m", 3.0) == [6.0] * 4
        assert server.infer("m", 3.0)[0] == 200
        replaced(server.workers()[0], server.workers)
        assert infer(server, "m", 4.0) == [8.0] * 4
        assert server.end() == 0
    finally:
        server.kill()
