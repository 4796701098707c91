"""Goodput, latency of the accepted and speed of refusals at multiples of a server's capacity."""

import time
from typing import Any

from bench.harness.closed_loop import closed_loop
from bench.peers.server import Server, Watch
from interlace.load.call import EncodedCall
from interlace.load.open_loop import OpenLoop, poisson
from interlace.load.result import UNANSWERED, LoadRun, figures, goodput_rps, ms, percentile

Row = dict[str, Any]
FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
#: Connections a server may be offered; more than its rate times any wait that matters here.
CONNECTIONS = 2000
#: How long a backlog may take to be answered before the next load.
DRAIN_S = 12.0


def capacity_rps(call: EncodedCall, seconds: float = 2.0) -> float:
    """What a closed loop of 32 connections gets through."""
    closed_loop(call, 8, 1.0, 0.0)
    return float(figures(closed_loop(call, 32, seconds))["rps"])


def measure(
    server: Server, call: EncodedCall, capacity: float, seconds: float, slo_ms: float, seed: int
) -> list[Row]:
    """One row per factor, least load first."""
    rows = []
    for number, factor in enumerate(FACTORS):
        arrivals = poisson([capacity * factor], seconds, seed * 100 + number)
        loop = OpenLoop([call], arrivals, CONNECTIONS)
        watch = Watch(server)
        run = loop.run(DRAIN_S)
        rows.append(_row(run, factor, capacity * factor, seconds, slo_ms) | watch.read())
        time.sleep(0.5)
    return rows


def _row(run: LoadRun, factor: float, offered_rps: float, seconds: float, slo_ms: float) -> Row:
    accepted = [s.latency_s for s in run.samples if s.status == 200]
    refused = [s.latency_s for s in run.samples if s.status not in (200, UNANSWERED)]
    return {
        **figures(run),
        "factor": factor,
        "offered_rps": round(offered_rps, 1),
        "goodput_rps": round(goodput_rps(run.samples, slo_ms, seconds), 1),
        "accepted_p50_ms": ms(percentile(accepted, 50)),
        "accepted_p99_ms": ms(percentile(accepted, 99)),
        "accepted_late": sum(latency * 1e3 > slo_ms for latency in accepted),
        "refused": len(refused),
        "refusal_p50_ms": ms(percentile(refused, 50)),
        "refusal_p99_ms": ms(percentile(refused, 99)),
        "by_status": {
            str(status): {
                "count": len(times),
                "p50_ms": ms(percentile(times, 50)),
                "p99_ms": ms(percentile(times, 99)),
            }
            for status, times in _by_status(run).items()
        },
        "unanswered": sum(s.status == UNANSWERED for s in run.samples),
    }


def _by_status(run: LoadRun) -> dict[int, list[float]]:
    """Latencies by status: a refusal on arrival (429) is not one that expired in a queue (504)."""
    found: dict[int, list[float]] = {}
    for sample in run.samples:
        found.setdefault(sample.status, []).append(sample.latency_s)
    return found
