"""Spans of OpenTelemetry: of each request that a router passes on, between caller and node."""

from __future__ import annotations

from typing import Any, Final

from interlace.core.version import __version__
from interlace.server.spans import TraceFields

_ROUTE: Final = "route"


class RouterSpans:
    """Makes a span of each request, below its caller's and above those of the nodes."""

    def __init__(self, provider: Any) -> None:
        """``provider`` is a TracerProvider."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._trace = trace
        self._tracer = provider.get_tracer("interlace", __version__)
        self._context = TraceContextTextMapPropagator()

    def begin(self, caller: TraceFields) -> RouteSpan:
        """A request is here."""
        above = self._context.extract(dict(caller))
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(_ROUTE, above, kind=kind)
        fields: dict[str, str] = {}
        self._context.inject(fields, self._trace.set_span_in_context(span, above))
        return RouteSpan(span, self._trace.StatusCode.ERROR, tuple(fields.items()))

    def close(self) -> None:
        """Send what is left; blocks for as long as the exporter waits for its collector."""
        self._provider.shutdown()


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
