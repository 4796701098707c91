"""Spans of OpenTelemetry: of a request, its queue, batch and run, and of its way by a router."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import ServeError
from interlace.core.messages import Command, Event, Run, SendReply
from interlace.core.request import Outcome, Reply, Request
from interlace.core.user_errors import InputError
from interlace.core.version import __version__

#: Header fields that name the span above a request's (W3C Trace Context); none if there is none.
TraceFields = tuple[tuple[str, str], ...]
_FIELDS: Final = ("traceparent", "tracestate")


def trace_fields(fields: Mapping[bytes, bytes]) -> TraceFields:
    """The fields that name the caller's span; ``tracestate`` means nothing without the other."""
    if b"traceparent" not in fields:
        return ()
    given = [(name, fields.get(name.encode())) for name in _FIELDS]
    return tuple([(name, value.decode("latin-1")) for name, value in given if value is not None])


#: As Triton calls the span of a request.
_REQUEST: Final = "InferRequest"
_NS_PER_MS: Final = 1e6
_ANSWERED: Final = (Outcome.OK, Outcome.LATE)


@dataclass(slots=True)
class _OpenRequest:
    """A request without an answer; ``zero_ns`` is the wall clock's time when the engine's began."""

    span: Any
    zero_ns: int
    run: Run | None = None

    def at_ns(self, ms: float) -> int:
        return self.zero_ns + int(ms * _NS_PER_MS)


class _SpanMaker:
    """What makes spans of one provider."""

    def __init__(self, provider: Any) -> None:
        """``provider`` is a TracerProvider."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._trace = trace
        self._tracer = provider.get_tracer("interlace", __version__)
        self._context = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what is left; blocks for as long as the exporter waits for its collector."""
        self._provider.shutdown()


class RequestSpans(_SpanMaker):
    """Makes spans of what the data plane begins and a runtime's engine decides.

    The caller's span is the parent, and with the SDK's usual sampler says whether a request is
    sampled. Steps of an ensemble are spans below that of the ensemble.
    """

    def __init__(self, provider: Any, now_ms: Callable[[], float]) -> None:
        """``provider`` is a TracerProvider; ``now_ms`` is the engine's clock."""
        super().__init__(provider)
        self._now_ms = now_ms
        self._open: dict[int, _OpenRequest] = {}

    def begin(self, request: Request, trace: TraceFields) -> None:
        """The data plane takes a request; ``end`` follows."""
        zero_ns = time.time_ns() - int(self._now_ms() * _NS_PER_MS)
        key = DeploymentKey.parse(request.model)
        span = self._server(key.name, str(key.version), trace, zero_ns, request.arrived_ms)
        if span.is_recording():
            span.set_attribute("interlace.rows", request.rows)
            span.set_attribute("interlace.slo_ms", request.deadline_ms - request.arrived_ms)
            self._open[request.id] = _OpenRequest(span, zero_ns)

    def begin_step(self, whole: Request, step: Request) -> None:
        """A request of an ensemble asks for a step; ``end`` follows for the step, too."""
        parent = self._open.get(whole.id)
        if parent is not None:
            key = DeploymentKey.parse(step.model)
            span = self._child(parent, _REQUEST, step.arrived_ms, _named(key.name, key.version))
            self._open[step.id] = _OpenRequest(span, parent.zero_ns)

    def refused(self, model: str, version: str, trace: TraceFields, error: ServeError) -> None:
        """The data plane refuses a call itself."""
        now_ns = time.time_ns()
        span = self._server(model, version, trace, now_ns, 0.0)
        self._fail(span, error)
        span.end(now_ns)

    def end(self, reply: Reply, now_ms: float) -> None:
        """A request, or a step, is answered."""
        entry = self._open.pop(reply.request.id, None)
        if entry is None:
            return
        entry.span.set_attribute("interlace.outcome", reply.outcome.value)
        entry.span.set_attribute("interlace.slack_ms", reply.request.deadline_ms - now_ms)
        if reply.error is not None:
            self._fail(entry.span, reply.error)
        entry.span.end(entry.at_ns(now_ms))

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        """See what the engine decides, as an observer of a runtime."""
        if not self._open:
            return
        for command in commands:
            if type(command) is Run:
                for request in command.batch.requests:
                    if (entry := self._open.get(request.id)) is not None:
                        entry.run = command
            elif type(command) is SendReply:
                entry = self._open.get(command.reply.request.id)
                if entry is not None:
                    self._stages(entry, command.reply, now_ms)

    def _stages(self, entry: _OpenRequest, reply: Reply, now_ms: float) -> None:
        timing, arrived_ms = reply.timing, reply.request.arrived_ms
        answered = reply.outcome in _ANSWERED
        started_ms = arrived_ms + timing.queue_ms if answered else now_ms
        self._child(entry, "queue", arrived_ms, {}).end(entry.at_ns(started_ms))
        run = entry.run
        if run is None or not answered:
            return
        batch = {
            "interlace.gpu": run.gpu,
            "interlace.partition": run.partition,
            "interlace.batch": run.batch.id,
            "interlace.attempt": run.batch.attempt,
            "interlace.rows": run.batch.rows,
        }
        span = self._child(entry, "batch", started_ms, batch)
        inside = _OpenRequest(span, entry.zero_ns)
        ended_ms = now_ms - timing.output_ms
        begun_ms = max(started_ms, ended_ms - timing.infer_ms)
        self._child(inside, "run", begun_ms, {}).end(entry.at_ns(ended_ms))
        span.end(entry.at_ns(now_ms))

    def _server(
        self, model: str, version: str, trace: TraceFields, zero_ns: int, began_ms: float
    ) -> Any:
        return self._tracer.start_span(
            _REQUEST,
            self._context.extract(dict(trace)),
            kind=self._trace.SpanKind.SERVER,
            attributes=_named(model, version),
            start_time=zero_ns + int(began_ms * _NS_PER_MS),
        )

    def _child(self, parent: _OpenRequest, name: str, ms: float, attributes: Any) -> Any:
        context = self._trace.set_span_in_context(parent.span)
        return self._tracer.start_span(
            name, context, attributes=attributes, start_time=parent.at_ns(ms)
        )

    def _fail(self, span: Any, error: ServeError) -> None:
        span.set_status(self._trace.StatusCode.ERROR, error.detail)
        span.set_attribute("error.type", error.reason.value)


def _named(model: str, version: object) -> dict[str, str]:
    return {"triton.model_name": model, "triton.model_version": str(version)}


def span_exporter(endpoint: str, service: str) -> Any:
    """A TracerProvider whose spans a collector gets by OTLP over HTTP.

    ``endpoint`` is a URL such as ``http://127.0.0.1:4318/v1/traces``; variables ``OTEL_...`` set
    the rest. Spans wait in a bounded queue for a thread that sends them; what does not fit is
    dropped.

    Raises:
        InputError: that is no URL of HTTP.
        ModuleNotFoundError: the extra ``otel`` is not installed.
    """
    found = urlsplit(endpoint)
    if found.scheme not in ("http", "https") or not found.hostname:
        text = f"--otlp {endpoint}: expected a URL such as http://127.0.0.1:4318/v1/traces"
        raise InputError(text)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # What the environment says of the service goes before.
    own = {"service.name": service, "service.version": __version__}
    resource = Resource(own).merge(Resource.create())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider


class RouterSpans(_SpanMaker):
    """Makes a span of each request, below its caller's and above those of the nodes."""

    def begin(self, caller: TraceFields) -> RouteSpan:
        """A request is here."""
        above = self._context.extract(dict(caller))
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span("route", above, kind=kind)
        fields: dict[str, str] = {}
        self._context.inject(fields, self._trace.set_span_in_context(span, above))
        return RouteSpan(span, self._trace.StatusCode.ERROR, tuple(fields.items()))


class RouteSpan:
    """The way of one request. ``fields`` are what nodes get of it."""

    __slots__ = ("_ended", "_error", "_span", "fields")

    def __init__(self, span: Any, error: Any, fields: TraceFields) -> None:
        """``error`` is the status of spans that failed."""
        self._span = span
        self._error = error
        self._ended = False
        self.fields = fields

    def asked(self, model: str, node: str) -> None:
        """A node is asked; the last one gives the answer."""
        self._span.set_attribute("triton.model_name", model)
        self._span.set_attribute("interlace.node", node)
        self._span.add_event("asked", {"interlace.node": node})

    def end(self, error: str) -> None:
        """The request has its answer; an ``error``, if that is not empty."""
        if self._ended:
            return
        self._ended = True
        if error:
            self._span.set_status(self._error, error)
        self._span.end()
