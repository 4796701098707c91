"""The HTTP front-end alone: requests a second, latency, and CPU a request.

    python -m bench.http_front [--seconds 2] [--wrk]

The server, over a runtime that gives inputs back on the next turn of the loop, is pinned to core 0,
the load generator to core 1; ``--wrk`` takes wrk for it, which costs less than ours and so shows
more of the server. Prints one JSON line for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import processes
from bench.harness.closed_loop import closed_loop
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Outcome, Reply, Request
from interlace.core.tensor import Signature, TensorSpec
from interlace.load.call import Call, pack
from interlace.load.result import figures
from interlace.runtime.clock import WallClock
from interlace.server.dataplane.plane import DataPlane
from interlace.server.http.inference_context import InferenceContext
from interlace.server.http.inference_handler import InferenceHandler
from interlace.server.http.limits import HttpLimits
from interlace.server.http.server import HttpServer, inference_routes
from interlace.server.model_table import ModelTable, ServedModel
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena, ArenaMap

SHAPES = {"small": (16,), "image": (3, 224, 224)}
CONNECTIONS = (1, 32)
SCRIPT = """
local file = io.open("{body}", "rb")
wrk.body = file:read("*all")
file:close()
wrk.method = "POST"
wrk.headers["Inference-Header-Content-Length"] = "{length}"
"""


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

    def submit(
        self, request: Request, answer: Callable[[Reply], None], give_up: object = None
    ) -> None:
        self._soon(self._answer, request, answer)

    def cancel(self, request: Request) -> None:
        """Nothing is ever cancelled: every answer comes at once."""

    def delivered(self, reply: Reply) -> None:
        """Nothing is held."""

    def _answer(self, request: Request, answer: Callable[[Reply], None]) -> None:
        outputs = (request.inputs[0]._replace(name="OUTPUT"),)
        answer(Reply(request, Outcome.OK, outputs))


def echo(name: str, shape: tuple[int, ...]) -> Model:
    inputs, outputs = (TensorSpec(tensor, "FP32", shape) for tensor in ("INPUT", "OUTPUT"))
    signature = Signature((inputs,), (outputs,), True, 16)
    return Model(name, 1, Format.ONNX, "", "", signature, ServiceTerms(1000.0))


async def serve() -> None:
    arena, arenas, table, limits = (
        Arena.create(1 << 28),
        ArenaMap(os.getpid()),
        ModelTable(),
        HttpLimits(),
    )
    arenas.add(arena)
    for name, shape in SHAPES.items():
        table.publish(ServedModel(echo(name, shape)))
    plane = DataPlane(EchoRuntime(), table, arenas)
    context = InferenceContext(plane, table, arena, arenas, Regions(), limits)
    server = HttpServer(inference_routes(), InferenceHandler(context), limits)
    print(await server.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()


def body(shape: tuple[int, ...]) -> tuple[bytes, int]:
    """A request body, and the length of its JSON part."""
    size = 4
    for each in shape:
        size *= each
    tensor = {"name": "INPUT", "shape": [1, *shape], "datatype": "FP32"}
    given = {**tensor, "parameters": {"binary_data_size": size}}
    wanted = {"name": "OUTPUT", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
    return head + bytes(size), len(head)


def by_ours(port: int, name: str, connections: int, seconds: float) -> dict[str, Any]:
    data, length = body(SHAPES[name])
    headers = {"Inference-Header-Content-Length": str(length)}
    wire = Call("http", port, f"/v2/models/{name}/infer", data, headers)
    return figures(closed_loop(pack(wire), connections, seconds))


def by_wrk(port: int, name: str, connections: int, seconds: float) -> dict[str, Any]:
    data, length = body(SHAPES[name])
    with tempfile.TemporaryDirectory() as folder:
        file, script = Path(folder, "body"), Path(folder, "post.lua")
        file.write_bytes(data)
        script.write_text(SCRIPT.format(body=file, length=length))
        url = f"http://127.0.0.1:{port}/v2/models/{name}/infer"
        argv = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
        argv += ["-s", str(script), url]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^ *(50%|99%|Requests/sec:) +(\S+)$", text, re.MULTILINE))
    calls = re.search(r"(\d+) requests in", text)
    return {
        "ok": int(calls[1]) if calls and "Non-2xx" not in text else 0,
        "rps": float(found["Requests/sec:"]),
        "p50": found["50%"],
        "p99": found["99%"],
    }


def measure(load: Callable[[int, str, int, float], dict[str, Any]], seconds: float) -> None:
    """Run the server in a process of its own, and load it."""
    argv = [sys.executable, "-m", "bench.http_front", "--serve"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            for name in SHAPES:
                for connections in CONNECTIONS:
                    before = processes.cpu_s([process.pid])
                    found = load(port, name, connections, seconds)
                    spent = processes.cpu_s([process.pid]) - before
                    row = {"tensor": name, "connections": connections, **found, "cpu_s": spent}
                    print(json.dumps(row), flush=True)
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--wrk", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    chosen = parser.parse_args()
    os.sched_setaffinity(0, {0 if chosen.serve else 1})
    if chosen.serve:
        import uvloop

        uvloop.run(serve())
    else:
        measure(by_wrk if chosen.wrk else by_ours, chosen.seconds)


if __name__ == "__main__":
    main()
