"""The HTTP and gRPC front-ends alone: calls a second, latency, and CPU a call.

A server of both protocols, over a runtime that gives inputs back on the next turn of the loop, is
pinned to core 0, the load generator to core 1.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Annotated, Any, Final

from bench.harness import Report, Table, main, processes
from bench.harness.closed_loop import closed_loop
from bench.harness.load import figures
from bench.peers import models, wire
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.core.tensor import Signature, TensorSpec
from interlace.runtime.clock import WallClock
from interlace.runtime.event_loop import settle_memory
from interlace.server.body_decoder import BodyDecoder
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.plane import DataPlane
from interlace.server.grpc.infer_calls import LocalInference
from interlace.server.grpc.server import GrpcServer
from interlace.server.http.inference_handler import InferenceHandler
from interlace.server.http.server import HttpServer, inference_routes
from interlace.server.limits import GrpcLimits, HttpLimits
from interlace.server.model_table import ModelTable, ServedModel
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap

MODELS: Final = ("echo", "img")
PROTOCOLS: Final = ("http", "grpc")


def front(
    *,
    protocols: tuple[str, ...] = PROTOCOLS,
    connections: tuple[int, ...] = (1, 32),
    seconds: Annotated[float, "of each run"] = 2.0,
) -> Report:
    """Every protocol, tensor and number of connections."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()  # so that a server that ends before it listens is an error here
    assert server.pid is not None
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: list[dict[str, Any]] = []
    try:
        ports = ours.recv()
        for protocol in protocols:
            for name in MODELS:
                call = replace(wire.request("ours", name, protocol), port=ports[protocol])
                for count in connections:
                    before_s = processes.cpu_s([server.pid])
                    run = figures(closed_loop(call.encoded(), count, seconds, 0.0))
                    spent_us = (processes.cpu_s([server.pid]) - before_s) * 1e6 / max(1, run["ok"])
                    head = {"protocol": protocol, "tensor": name, "connections": count}
                    found.append({**head, **run, "cpu_us": round(spent_us, 1)})
                    print(found[-1], flush=True)
    finally:
        server.kill()
        server.join()
    heads = ("protocol", "tensor", "connections", "rps", "p50_ms", "p99_ms", "cpu_us")
    return Report(
        tables=[Table(heads, [[one[head] for head in heads] for one in found])], figures=found
    )


def serve(ports: Connection) -> None:
    """Serve until this process is ended; the ports are sent once they listen."""
    import uvloop

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    uvloop.run(_serve(ports))


async def _serve(ports: Connection) -> None:
    arena, arenas = Arena.create(1 << 28), ArenaMap(os.getpid())
    arenas.add(arena)
    table, regions = ModelTable(), Regions()
    for name in MODELS:
        table.publish(ServedModel(_echo(name)))
    echo: Any = EchoRuntime()
    plane = DataPlane(echo, table, arenas)
    bodies = BodyDecoder(arena)
    context = InferenceContext(plane, table, arena, arenas, regions, bodies)
    http = HttpServer(inference_routes(), InferenceHandler(context, HttpLimits()))
    no_administration: Any = None
    grpc = GrpcServer(LocalInference(context, GrpcLimits()), no_administration)
    listening = {
        "http": await http.listen("127.0.0.1", 0),
        "grpc": await grpc.listen("127.0.0.1", 0),
    }
    settle_memory()  # as the product does once it is ready
    ports.send(listening)
    await asyncio.Event().wait()


def _echo(name: str) -> Model:
    shape = models.BY_NAME[name].inputs[0].dims
    inputs, outputs = (TensorSpec(tensor, "FP32", shape) for tensor in ("INPUT", "OUTPUT"))
    signature = Signature((inputs,), (outputs,), True, 16)
    return Model(name, 1, Format.ONNX, "", "", signature, ServiceTerms(1000.0))


class EchoRuntime:
    """Gives every request its inputs back, on the next turn of the loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop)
        self._soon = loop.call_soon
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def submit(self, request: Request, caller: Callbacks) -> None:
        self._soon(self._answer, request, caller.on_reply)

    def cancel(self, request: Request) -> None:
        """Nothing is ever cancelled: every answer comes at once."""

    def delivered(self, reply: Reply) -> None:
        """Nothing is held."""

    @property
    def changes(self) -> int:
        return self._ids

    def count_refused(self, model: str, rows: int) -> None:
        """Nothing is ever refused."""

    def _answer(self, request: Request, answer: Callable[[Reply], None]) -> None:
        outputs = (request.inputs[0]._replace(name="OUTPUT"),)
        answer(Reply(request, Outcome.OK, outputs))


if __name__ == "__main__":
    main(front)
