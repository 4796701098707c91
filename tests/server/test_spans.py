"""Spans of OpenTelemetry: what they say, whose they are, and that a collector gets them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGINT
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import grpc
import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.plan import Demand
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.core.user_errors import InputError
from interlace.policy.catalog import CATALOG
from interlace.proto.messages import ModelInferRequest
from interlace.router.grpc.passed_calls import CallHeads
from interlace.router.http.passed_heads import RequestHeads
from interlace.server.grpc.headers import HeaderBlocks, read_head
from interlace.server.spans import RequestSpans, RouterSpans, span_exporter, trace_fields
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import warmed
from interlace.sim.scenario import Simulation
from tests.builders import line_profile
from tests.cli.test_replay import FLEET
from tests.fleet.stand import Process, free_ports, until

pytest.importorskip("opentelemetry.sdk", reason="no opentelemetry-sdk: install the extra otel")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
STATE = "vendor=1,other=2"
CALLER = (("traceparent", PARENT), ("tracestate", STATE))


def _in_memory() -> tuple[Any, Any]:
    """A TracerProvider, and where its spans are."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return provider, memory


class Traced:
    """A simulated runtime whose requests are traced into memory."""

    def __init__(self) -> None:
        profiles = {"m/1#0": line_profile("m/1#0", 1.0, 0.5)}
        arrivals = merge_arrivals({"m/1#0": poisson(100.0)}, 0.1, 0)
        demand = (Demand("m/1#0", 100.0, 30.0),)
        scenario = Simulation(CATALOG["interlace"], FLEET, demand, profiles, profiles, arrivals)
        self.runtime, self.clock, _ = warmed(scenario, [])
        provider, self.memory = _in_memory()
        self.spans = RequestSpans(provider, self.clock.now_ms)
        self.runtime.observe(self.spans)
        self.replies: list[Reply] = []

    def request(self, slo_ms: float = 30.0) -> Request:
        now_ms = self.clock.now_ms()
        return Request(self.runtime.next_id(), "m/1#0", now_ms, now_ms + slo_ms)

    def ask(self, request: Request, traceparent: str = PARENT) -> None:
        def answer(reply: Reply) -> None:
            self.spans.end(reply, self.clock.now_ms())
            self.replies.append(reply)

        self.spans.begin(request, (("traceparent", traceparent),))
        self.runtime.submit(request, Callbacks(answer))

    def named(self) -> dict[str, Any]:
        return {span.name: span for span in self.memory.get_finished_spans()}


def test_a_request_is_a_tree_of_queue_batch_and_run() -> None:
    traced = Traced()
    for _ in range(5):
        traced.ask(traced.request())
    traced.clock.run(traced.clock.now_ms() + 30.0)
    assert [reply.outcome for reply in traced.replies] == [Outcome.OK] * 5
    every = traced.memory.get_finished_spans()
    whole = [span for span in every if span.name == "InferRequest"][-1]
    below = {span.name: span for span in every if span.parent.span_id == whole.context.span_id}
    queue, batch = below["queue"], below["batch"]
    (run,) = (span for span in every if span.parent.span_id == batch.context.span_id)
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT.split("-")[2]
    assert run.name == "run"
    assert whole.start_time == queue.start_time <= queue.end_time == batch.start_time
    assert batch.start_time <= run.start_time < run.end_time <= batch.end_time == whole.end_time
    took_ms = (whole.end_time - whole.start_time) / 1e6
    queue_ms = (queue.end_time - queue.start_time) / 1e6
    assert queue_ms == pytest.approx(traced.replies[-1].timing.queue_ms, abs=1e-3)
    assert took_ms > queue_ms >= 1.0
    assert whole.attributes["triton.model_name"] == "m"
    assert whole.attributes["interlace.outcome"] == "ok"
    assert whole.attributes["interlace.slack_ms"] == pytest.approx(30.0 - took_ms, abs=0.01)
    assert batch.attributes["interlace.rows"] >= 1 and batch.attributes["interlace.partition"]


def test_refusals_say_why_and_what_is_not_sampled_leaves_nothing() -> None:
    traced = Traced()
    traced.ask(traced.request(slo_ms=0.5))
    whole = traced.named()["InferRequest"]
    assert whole.attributes["error.type"] == "deadline" and not whole.status.is_ok
    assert "after the deadline of 0.5 ms" in whole.status.description
    traced.memory.clear()
    traced.ask(traced.request(), PARENT[:-1] + "0")  # the caller does not sample
    traced.clock.run(traced.clock.now_ms() + 30.0)
    assert not traced.memory.get_finished_spans() and not traced.spans._open
    traced.ask(traced.request(), "nonsense")  # begins a trace of its own
    traced.clock.run(traced.clock.now_ms() + 30.0)
    traced.spans.refused("gone", "", CALLER, ServeError(Reason.UNKNOWN_MODEL, "no model 'gone'"))
    own, refused = (one for one in traced.memory.get_finished_spans() if one.name == "InferRequest")
    assert own.parent is None
    assert refused.attributes["error.type"] == "unknown_model" and refused.context.trace_id


def test_steps_of_an_ensemble_are_below_it() -> None:
    traced = Traced()
    whole, step = Request(7_000, "pair/1#0", 0.0, 50.0), traced.request()
    traced.spans.begin(whole, CALLER)
    traced.spans.begin_step(whole, step)
    answer = Callbacks(lambda reply: traced.spans.end(reply, traced.clock.now_ms()))
    traced.runtime.submit(step, answer)
    traced.clock.run(traced.clock.now_ms() + 30.0)
    traced.spans.end(Reply(whole, Outcome.OK), traced.clock.now_ms())
    inner, outer = (one for one in traced.memory.get_finished_spans() if one.name == "InferRequest")
    assert inner.parent.span_id == outer.context.span_id
    assert traced.named()["queue"].parent.span_id == inner.context.span_id
    assert not traced.spans._open


def test_both_fields_of_a_trace_go_on_and_none_without_a_parent() -> None:
    fields = {b"traceparent": PARENT.encode(), b"tracestate": STATE.encode(), b"te": b"trailers"}
    assert trace_fields(fields) == CALLER
    assert trace_fields({b"tracestate": b"a=1"}) == ()
    heads = HeaderBlocks(4096, read_head)
    assert heads.read(CallHeads("node:1", "").block("/x", None, 0.0, CALLER)).trace == CALLER
    twice = CallHeads("node:1", "").block("/x", None, 0.0, (*CALLER, ("tracestate", "third=3")))
    assert dict(heads.read(twice).trace)["tracestate"] == f"{STATE},third=3"
    raw = f"POST /a HTTP/1.1\r\nTraceparent: {PARENT}\r\ntracestate: {STATE}\r\n\r\n".encode()
    kept = RequestHeads(b"node:1").head(raw, 0, 0.0)
    assert PARENT.encode() in kept and STATE.encode() in kept
    other = (("traceparent", PARENT.replace("b7ad", "ffff")),)
    own = RequestHeads(b"node:1").head(raw, 0, 2.5, other)
    assert PARENT.encode() not in own and STATE.encode() not in own
    assert own.endswith(
        f"traceparent: {other[0][1]}\r\nInterlace-Elapsed-Ms: 2.500\r\n\r\n".encode()
    )


def test_a_request_that_two_nodes_are_asked_for_is_one_span_of_its_router() -> None:
    provider, memory = _in_memory()
    spans = RouterSpans(provider)
    span = spans.begin(CALLER)
    fields = dict(span.fields)
    for node in "ab":
        span.asked("m", node)
    span.end("")
    span.end("nothing any more")
    (made,) = memory.get_finished_spans()
    assert (made.name, made.status.is_ok, made.attributes["interlace.node"]) == ("route", True, "b")
    assert [one.attributes["interlace.node"] for one in made.events] == ["a", "b"]
    assert fields["traceparent"] == f"00-{TRACE}-{made.context.span_id:016x}-01"
    assert fields["tracestate"] == STATE
    unsampled = spans.begin((("traceparent", PARENT[:-1] + "0"),))
    assert unsampled.fields[0][1].startswith(f"00-{TRACE}-") and unsampled.fields[0][1][-2:] == "00"
    unsampled.end("an error")
    assert len(memory.get_finished_spans()) == 1


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://a/b", ""])
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(InputError, match="expected a URL such as"):
        span_exporter(url, "interlace")


@pytest.fixture
def collected() -> Iterator[tuple[str, list[Any]]]:
    """The URL of a collector, and the spans that it got, each with the name of its service."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process
@pytest.mark.slow
def test_a_collector_gets_what_callers_of_a_router_began(
    collected: tuple[str, list[Any]], tmp_path: Path
) -> None:
    url, found = collected
    port = free_ports(5)
    node = Process(
        tmp_path, "node", "serve", str(EXAMPLES / "fleet"), "--device", "simulated", "--gpu",
        "h100", "--gpus", "1", "--http-port", str(port), "--grpc-port", str(port + 1),
        "--metrics-port", str(port + 2), "--profiles", str(tmp_path / "profiles"), "--otlp", url,
    )  # fmt: skip
    router = Process(
        tmp_path, "router", "router", f"a=127.0.0.1:{port}", "--http-port", str(port + 3),
        "--grpc-port", str(port + 4), "--otlp", url,
    )  # fmt: skip
    over = {"HTTP": TRACE, "gRPC": TRACE[::-1]}
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}
    body = json.dumps({"inputs": [tensor]}).encode()
    infer = f"http://127.0.0.1:{port + 3}/v2/models/tagger/infer"
    traced = HttpRequest(infer, body, dict(CALLER))
    try:
        until(lambda: json.load(urlopen(traced, timeout=5)).get("outputs"))
        message = ModelInferRequest(model_name="tagger", raw_input_contents=[bytes(64)])
        message.inputs.add(name="features", datatype="FP32", shape=[1, 16])
        with grpc.insecure_channel(f"127.0.0.1:{port + 4}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            metadata = [(CALLER[0][0], PARENT.replace(TRACE, over["gRPC"])), CALLER[1]]
            assert call(message.SerializeToString(), metadata=metadata, timeout=20)
        assert (router.end(SIGINT), node.end(SIGINT)) == (0, 0)  # what is left is sent
    finally:
        for process in (node, router):
            if process.lives:
                process.end()
    for trace in over.values():
        own = [span for span in found if span.trace_id.hex() == trace]
        spans = {span.span_id: span for span in own if span.trace_state == STATE}
        ways = set()
        for span in spans.values():
            way = [span]
            while (above := spans.get(way[-1].parent_span_id)) is not None:
                way.append(above)
            assert way[-1].parent_span_id.hex() == PARENT.split("-")[2]
            ways.add(" < ".join(one.name for one in way))
        within = "InferRequest < route"
        batch = f"batch < {within}"
        assert ways == {"route", within, f"queue < {within}", batch, f"run < {batch}"}
