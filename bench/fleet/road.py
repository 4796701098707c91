"""What the road adds: calls straight to a node, through a router, and through HAProxy.

In one run, in turns, on the same node and send times. Added is the difference of quantiles of
latency; CPU is what the router's own process used for each call, of which one core's most follows.
Ray Serve beside does less than all others: its replica answers at once, and is counted with its
proxy.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Annotated, Final

from bench.fleet.stands import haproxy, node, ray_serve, ray_workers, router, running
from bench.harness import Report, Table, main, percentile, spread
from bench.harness.load import GrpcCall
from bench.harness.processes import cpu_s
from interlace.core.tensor import ITEM_BYTES
from interlace.core.user_errors import UserError
from interlace.load.connections import EncodedCall
from interlace.load.open_loop import ArrivalProcess, OpenLoop, merged, send_times
from interlace.load.v2_client import V2Client, make_call
from interlace.proto.messages import ModelInferRequest
from interlace.server.grpc.service import MODEL_INFER

_NODE, _ROUTER, _HAPROXY, _RAY = 18_410, 18_420, 18_430, 18_440


def road(
    *,
    rate: Annotated[float, "calls per second"] = 200.0,
    seconds: Annotated[float, "of each turn"] = 5.0,
    turns: Annotated[int, "of each way"] = 5,
    model: Annotated[str, "of examples/fleet"] = "tagger",
    proto: Annotated[str, "http, or grpc (without HAProxy and Ray Serve)"] = "http",
    ray: Annotated[str, "a Python that has ray[serve], to put Ray Serve beside"] = "",
) -> Report:
    """Latency and CPU of each way."""
    with ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        ends.enter_context(running(*node(_NODE)))
        ways: dict[str, tuple[int, Sequence[int]]] = {"straight": (_NODE, ())}
        ways["router"] = _ROUTER, [ends.enter_context(running(*router(_ROUTER, [_NODE])))]
        if proto == "http":
            try:
                other = running(*haproxy(_HAPROXY, [_NODE], Path(folder)))
                ways["HAProxy"] = _HAPROXY, [ends.enter_context(other)]
            except UserError as error:
                print(error)
        if ray and proto == "http":
            pid = ends.enter_context(running(*ray_serve(_RAY, ray)))
            ways["Ray Serve"] = _RAY, ray_workers(pid)
        found = {way: _Way() for way in ways}
        for turn in range(turns):
            for way, (port, pids) in ways.items():
                call = _CALLS[proto](port, model)
                found[way].measure(call, pids, rate, seconds, turn)
    return _report(found)


def _http(port: int, model: str) -> EncodedCall:
    return make_call(V2Client(f"http://127.0.0.1:{port}", None), model, {}, None).encoded


def _grpc(port: int, model: str) -> EncodedCall:
    """One row of zeros, raw; gRPC is at the port after HTTP's."""
    message = ModelInferRequest(model_name=model)
    for one in V2Client(f"http://127.0.0.1:{port}", None).metadata(model)["inputs"]:
        shape = [max(1, dim) for dim in one["shape"]]
        message.inputs.add(name=one["name"], datatype=one["datatype"], shape=shape)
        message.raw_input_contents.append(bytes(prod(shape) * ITEM_BYTES[one["datatype"]]))
    return GrpcCall(port + 1, MODEL_INFER, message.SerializeToString()).encoded()


_CALLS: Final[Mapping[str, Callable[[int, str], EncodedCall]]] = {"http": _http, "grpc": _grpc}


class _Way:
    """Quantiles of each turn in ms, and CPU."""

    def __init__(self) -> None:
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []
        self.cpu_us: list[float] = []
        self.failed: Counter[str] = Counter()  #: calls without a good answer, by what was said

    def measure(
        self, call: EncodedCall, pids: Sequence[int], rate: float, seconds: float, seed: int
    ) -> None:
        """One turn."""
        times_s = send_times(ArrivalProcess.POISSON, rate, seconds, seed)
        before_s = cpu_s(pids)
        run = OpenLoop([call], merged([times_s]), 64, 16).run(5.0)
        good = [s.latency_s * 1e3 for s in run.samples if s.status == 200]
        self.failed.update(f"{s.status} {s.reason}" for s in run.samples if s.status != 200)
        self.p50_ms.append(percentile(good, 50) or 0.0)
        self.p99_ms.append(percentile(good, 99) or 0.0)
        if pids:
            self.cpu_us.append((cpu_s(pids) - before_s) / len(run.samples) * 1e6)


def _report(found: Mapping[str, _Way]) -> Report:
    straight = found["straight"]
    cells = []
    for name, way in found.items():
        cpu_us = sorted(way.cpu_us)[len(way.cpu_us) // 2] if way.cpu_us else None
        cells.append(
            [
                name,
                _added(way.p50_ms, straight.p50_ms),
                _added(way.p99_ms, straight.p99_ms),
                None if cpu_us is None else round(cpu_us, 1),
                None if not cpu_us else round(1e6 / cpu_us),
                way.failed.total(),
            ]
        )
    heads = ["way", "added p50, ms", "added p99, ms", "CPU us a call", "calls/s a core", "failed"]
    broken = [f"{name}: {calls} calls failed: {why}"
              for name, way in found.items() for why, calls in way.failed.items()]  # fmt: skip
    figures = {n: {"p50_ms": w.p50_ms, "p99_ms": w.p99_ms, "cpu_us": w.cpu_us}
               for n, w in found.items()}  # fmt: skip
    return Report(tables=[Table(heads, cells)], figures=figures, broken=broken)


def _added(ours_ms: Sequence[float], straight_ms: Sequence[float]) -> str:
    found = spread([own - base for own, base in zip(ours_ms, straight_ms, strict=True)])
    return found.text(3) if found else ""


if __name__ == "__main__":
    main(road)
