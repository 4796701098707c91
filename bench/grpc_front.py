"""The gRPC server alone: calls a second, latency, and CPU a call, with grpcio's for comparison.

    python -m bench.grpc_front [--grpcio] [--seconds 3]

The server, which gives inputs back as outputs, is pinned to core 0, the load generator to core 1.
Prints one JSON line for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.harness import processes
from bench.harness.closed_loop import closed_loop
from interlace.core.request import Outcome, Reply, Request
from interlace.load.call import Call, pack
from interlace.load.result import figures
from interlace.proto.messages import ModelInferRequest, ModelInferResponse
from interlace.server.dataplane.call import InferenceCall, OnError, OnReply
from interlace.server.grpc.server import GrpcServer
from interlace.server.model_table import ModelTable
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap

INFER = "/inference.GRPCInferenceService/ModelInfer"
SHAPES = {"small": (1, 16), "image": (1, 3, 224, 224)}
CONNECTIONS = (1, 32)


class EchoPlane:
    """Gives every call its inputs back, at once."""

    def infer(
        self,
        call: InferenceCall,
        on_reply: OnReply,
        on_error: OnError,
        on_give_up: OnError | None = None,
    ) -> Request | None:
        request = Request(1, "echo/1#1", 0.0, 1e9, inputs=call.inputs)
        outputs = tuple(tensor._replace(name="OUTPUT") for tensor in call.inputs)
        on_reply(Reply(request, Outcome.OK, outputs))
        return request

    def cancel(self, request: Request) -> None:
        """Nothing is ever cancelled: every answer is given at once."""

    def delivered(self, reply: Reply) -> None:
        """Nothing is held."""


async def serve_ours() -> None:
    arena, arenas = Arena.create(256 << 20), ArenaMap(os.getpid())
    arenas.add(arena)
    no_administration: Any = None
    server = GrpcServer(EchoPlane(), no_administration, ModelTable(), Regions(), arena, arenas)
    print(await server.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


def serve_grpcio() -> None:
    """The least that grpcio can do: raw bytes in and out, a pool of threads, an echo in place."""
    import grpc

    def echo(data: bytes, context: object) -> bytes:
        asked = ModelInferRequest.FromString(data)
        given = ModelInferResponse(model_name=asked.model_name, model_version="1")
        given.outputs.add(name="OUTPUT", datatype="FP32", shape=asked.inputs[0].shape)
        given.raw_output_contents.append(asked.raw_input_contents[0])
        encoded: bytes = given.SerializeToString()
        return encoded

    service = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService",
        {"ModelInfer": grpc.unary_unary_rpc_method_handler(echo)},
    )
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((service,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def measure(kind: str, seconds: float) -> None:
    """Run a server of that kind in a process of its own, and load it."""
    argv = [sys.executable, "-m", "bench.grpc_front", "--serve", kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            family = [process.pid, *processes.descendants([process.pid])]
            cpu = partial(each_cpu_s, family)
            for name, shape in SHAPES.items():
                for connections in CONNECTIONS:
                    found = load(port, shape, connections, seconds, cpu)
                    print(json.dumps({"server": kind, "tensor": name, **found}), flush=True)
        finally:
            process.kill()


def load(
    port: int,
    shape: tuple[int, ...],
    connections: int,
    seconds: float,
    cpu: Callable[[], list[float]],
) -> dict[str, Any]:
    """Figures of one run; ``cpu_us`` is CPU a call of each server process, in us."""
    asked = ModelInferRequest(model_name="echo")
    size = 4
    for each in shape:
        size *= each
    asked.inputs.add(name="INPUT", datatype="FP32", shape=shape)
    asked.raw_input_contents.append(bytes(size))
    before: list[float] = []
    run = closed_loop(
        pack(Call("grpc", port, INFER, asked.SerializeToString())),
        connections,
        seconds,
        on_measure=lambda: before.extend(cpu()),
    )
    found = figures(run)
    spent = [after - first for first, after in zip(before, cpu(), strict=True)]
    used = [round(each / max(1, found["ok"]) * 1e6, 1) for each in spent]
    return {"connections": connections, **found, "cpu_us": used}


def each_cpu_s(family: list[int]) -> list[float]:
    return [processes.cpu_s([one]) for one in family]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=["ours", "grpcio"])
    parser.add_argument("--grpcio", action="store_true", help="measure grpcio too")
    parser.add_argument("--seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    if chosen.serve:
        os.sched_setaffinity(0, {0})
    if chosen.serve == "ours":
        import uvloop

        uvloop.run(serve_ours())
    elif chosen.serve:
        serve_grpcio()
    else:
        os.sched_setaffinity(0, {1})
        for kind in ("ours", "grpcio") if chosen.grpcio else ("ours",):
            measure(kind, chosen.seconds)


if __name__ == "__main__":
    main()
