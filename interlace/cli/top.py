"""`interlace top`: a live table of a running server."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.text import Text

from interlace.cli.options import CallCa, KeyFile, positive, read_key
from interlace.cli.screen import FoldingTable, console, watch
from interlace.core.user_errors import UserError
from interlace.load.v2_client import V2Client

_SAMPLE: Final = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line: its labels and value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of a metrics page; names that are not there have no samples.

    ``of_models`` are the same by name and model: there may be thousands.
    """

    samples: Mapping[str, Sequence[MetricSample]]
    of_models: Mapping[tuple[str, str], Sequence[MetricSample]]

    def value(self, name: str, **labels: str) -> float:
        """The sum of a name's samples that carry these labels; 0 if there are none."""
        return sum(sample.value for sample in self.having(name, labels))

    def having(self, name: str, labels: Mapping[str, str]) -> list[MetricSample]:
        """A name's samples that carry these labels."""
        wanted, model = labels.items(), labels.get("model")
        known = (
            self.samples.get(name, ()) if model is None else self.of_models.get((name, model), ())
        )
        return [sample for sample in known if wanted <= sample.labels.items()]

    def buckets(self, name: str, labels: Mapping[str, str]) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound, summed over samples."""
        found: dict[float, float] = {}
        for sample in self.having(f"{name}_bucket", labels):
            bound = float(sample.labels["le"])
            found[bound] = found.get(bound, 0.0) + sample.value
        return dict(sorted(found.items()))


def read_metrics(text: str) -> Scrape:
    """Parse a page; lines that are no samples are skipped."""
    found: dict[str, list[MetricSample]] = {}
    of_models: dict[tuple[str, str], list[MetricSample]] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = _LABEL.findall(labels or "")
        sample = MetricSample({key: _plain(raw) for key, raw in pairs}, number)
        found.setdefault(name, []).append(sample)
        of_models.setdefault((name, sample.labels.get("model", "")), []).append(sample)
    return Scrape(found, of_models)


def bucket_quantile(counts: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram of cumulative counts, linear inside its bucket.

    ``None`` without observations; the largest finite bound for those above it.
    """
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    rank, below, low = share * total, 0.0, 0.0
    for bound, count in counts.items():
        if count >= rank and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        below, low = count, bound if bound != float("inf") else low
    return low


def _plain(raw: str) -> str:
    if "\\" not in raw:  # nearly all: thousands of models have a hundred lines each
        return raw
    return re.sub(r'\\[\\"n]', lambda escape: _ESCAPES[escape[0]], raw)


_LATENCY = "nv_inference_request_duration_histogram_us"


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model's rates over the time between two readings, and its state at the second.

    ``in_slo`` is the part of accepted requests that ended within their SLO; latencies are read off
    a histogram's buckets. ``None`` where nothing happened. ``cold_starts`` took ``cold_ms``.
    """

    model: str
    slo_ms: float
    requests_rps: float
    goodput_rps: float
    in_slo: float | None
    p50_ms: float | None
    p99_ms: float | None
    queue_rows: float
    refused_rps: float
    share_pct: float
    resident_bytes: float
    capacity_rows_per_s: float
    weights: str  #: their state if swapped, else empty
    weights_held_bytes: float
    weights_bytes: float
    cold_starts: float
    cold_ms: float


@dataclass(frozen=True, slots=True)
class ScrapeDelta:
    """Two readings ``seconds`` apart."""

    before: Scrape
    after: Scrape
    seconds: float

    def rows(self) -> list[ModelRow]:
        """Every model of the second reading."""
        return [self._row(s.labels) for s in self.after.samples.get("interlace_slo_ms", ())]

    def _row(self, labels: Mapping[str, str]) -> ModelRow:
        within = self._grown("interlace_slo_within_total", labels)
        ended = within + self._grown("interlace_slo_missed_total", labels)
        answered = self._grown("nv_inference_request_success", labels)
        failed = self._grown("nv_inference_request_failure", labels)
        counts = self._latencies(labels)
        model, version = labels.get("model", ""), labels.get("version", "1")
        return ModelRow(
            model=model if version == "1" else f"{model}/{version}",
            slo_ms=self._now("interlace_slo_ms", labels),
            requests_rps=(answered + failed) / self.seconds,
            goodput_rps=within / self.seconds,
            in_slo=within / ended if ended else None,
            p50_ms=_ms(bucket_quantile(counts, 0.50)),
            p99_ms=_ms(bucket_quantile(counts, 0.99)),
            queue_rows=self._now("interlace_queue_rows", labels),
            refused_rps=self._grown("interlace_refusals_total", labels) / self.seconds,
            share_pct=self._now("interlace_model_share_pct", labels),
            resident_bytes=self._now("interlace_model_resident_bytes", labels),
            capacity_rows_per_s=self._now("interlace_model_capacity_rows_per_s", labels),
            weights=self._weights(labels),
            weights_held_bytes=self._now("interlace_model_weights_held_bytes", labels),
            weights_bytes=self._now("interlace_model_weights_bytes", labels),
            cold_starts=self._grown("interlace_cold_starts_total", labels),
            cold_ms=self._grown("interlace_cold_start_ms_total", labels),
        )

    def _weights(self, labels: Mapping[str, str]) -> str:
        name = "interlace_model_weights_state"
        states = ("resident", "loading", "cold")
        own = {key: labels[key] for key in ("model", "version") if key in labels}
        return next((one for one in states if self.after.value(name, **own, state=one)), "")

    def _now(self, name: str, labels: Mapping[str, str]) -> float:
        return self.after.value(name, **labels)

    def _grown(self, name: str, labels: Mapping[str, str]) -> float:
        # A counter that fell was restarted with the server: what it shows is all there is.
        now, then = self.after.value(name, **labels), self.before.value(name, **labels)
        return now - then if now >= then else now

    def _latencies(self, labels: Mapping[str, str]) -> dict[float, float]:
        now = self.after.buckets(_LATENCY, labels)
        then = self.before.buckets(_LATENCY, labels)
        return {bound: max(0.0, count - then.get(bound, 0.0)) for bound, count in now.items()}


def render(between: ScrapeDelta, url: str) -> Group:
    """One frame."""
    figures = ("SLO ms", "req/s", "good/s", "in SLO", "p50 ms", "p99 ms", "queue", "refused/s")
    rows = between.rows()
    goes = any(row.weights for row in rows)
    cold = ("weights MB", "cold/s", "cold ms") if goes else ()
    made = FoldingTable(("model",), (*figures, "share %", "held MB", "capacity/s", *cold))
    for row in rows:
        made.add_row(*_cells(row), *(_weights_cells(row, between.seconds) if goes else ()))
    return Group(Text(_headline(between, url)), made)


def _headline(between: ScrapeDelta, url: str) -> str:
    after = between.after
    said = [url, f"last {between.seconds:.0f} s"]
    if "interlace_headroom_ratio" in after.samples:
        said.append(f"headroom x{after.value('interlace_headroom_ratio'):.2f}")
    said.append(f"in flight {after.value('interlace_requests_in_flight'):.0f}")
    said.append(f"connections {after.value('interlace_connections'):.0f}")
    said.append(f"workers {after.value('interlace_workers'):.0f}")
    restarts = after.value("interlace_worker_restarts_total")
    return "   ".join([*said, f"replaced {restarts:.0f}"] if restarts else said)


def _cells(row: ModelRow) -> list[str]:
    return [
        row.model,
        f"{row.slo_ms:g}",
        f"{row.requests_rps:.1f}",
        f"{row.goodput_rps:.1f}",
        "-" if row.in_slo is None else f"{row.in_slo:.1%}",
        "-" if row.p50_ms is None else f"{row.p50_ms:.1f}",
        "-" if row.p99_ms is None else f"{row.p99_ms:.1f}",
        f"{row.queue_rows:.0f}",
        f"{row.refused_rps:.1f}",
        f"{row.share_pct:.0f}",
        f"{row.resident_bytes / 1e6:.0f}",
        f"{row.capacity_rows_per_s:.0f}",
    ]


def _weights_cells(row: ModelRow, seconds: float) -> list[str]:
    if not row.weights:
        return ["stay", "", ""]
    held_mb, all_mb = row.weights_held_bytes / 1e6, row.weights_bytes / 1e6
    places = 1 if all_mb < 10 else 0
    return [
        f"{row.weights} {held_mb:.{places}f}/{all_mb:.{places}f}",
        f"{row.cold_starts / seconds:.2f}",
        f"{row.cold_ms / row.cold_starts:.0f}" if row.cold_starts else "-",
    ]


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None else value_us / 1000.0


def top(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    interval: Annotated[float, typer.Option(help="Seconds between frames.")] = 1.0,
    window: Annotated[float, typer.Option(help="Seconds that rates and latencies cover.")] = 10.0,
    api_key_file: KeyFile = None,
    ca: CallCa = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, of one interval, and exit.")
    ] = False,
) -> None:
    """Watch a running server: goodput, latency, refusals and shares per model.

    "in SLO" counts accepted requests; requests refused on arrival have a column of their own.

    \b
    Examples:
      interlace top
      interlace top http://127.0.0.1:8000 --interval 2 --window 60
      interlace top --once
    """
    positive({"--interval": interval, "--window": window})
    seen = _Watch(V2Client(url, read_key(api_key_file), ca=ca), window)
    seen.read()
    watch(console(), seen.look, interval, once)


class _Watch:
    """Readings of the last ``window`` seconds."""

    def __init__(self, server: V2Client, window_s: float) -> None:
        self._server = server
        self._window_s = window_s
        self._readings: deque[tuple[float, Scrape]] = deque()

    def look(self) -> Group:
        """Read the metrics again; a frame of what happened since the oldest reading kept."""
        self.read()
        (then_s, before), (now_s, scrape) = self._readings[0], self._readings[-1]
        return render(ScrapeDelta(before, scrape, max(now_s - then_s, 1e-3)), self._server.url)

    def read(self) -> None:
        """Read the metrics, and forget readings that are older than the window."""
        scrape, now_s = read_metrics(self._server.text("/metrics")), time.monotonic()
        if not scrape.samples:
            raise UserError(f"{self._server.url}/metrics is not a page of metrics")
        self._readings.append((now_s, scrape))
        while len(self._readings) > 2 and now_s - self._readings[1][0] >= self._window_s:
            self._readings.popleft()
