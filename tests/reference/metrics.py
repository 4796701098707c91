"""docs/metrics.md: every family that a node and a router publish."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from interlace.core.node import Node, NodeState
from interlace.router import directory
from interlace.routing.routes import Routes, RoutingLimits, by_pace
from interlace.runtime.clock import WallClock
from interlace.server import statistics
from interlace.server.limits import HeapBudget
from tests.server.test_metrics import SNAPSHOT
from tests.server.test_metrics import table as models

from . import markdown
from .markdown import sentence

_START = """# Metrics

In the text format of Prometheus. A family without samples is left out: GPU figures without a GPU,
figures of swapped weights without `--memory`, `interlace_refusals_total` before the first error,
and `interlace_stream_` without [`[stream]`](settings.md#stream).

Families with the prefix `nv_` have the names and labels of Triton. Use `interlace_headroom_ratio`
to scale, and `interlace_slo_missed_total` for alerts. The chart's rules are in
`deploy/helm/interlace/files/rules.yaml`.

## Server

`interlace serve` answers `/metrics` on its HTTP and metrics ports.
"""
_ROUTER = """
## Router

`interlace router` and `interlace fleet serve` answer `/metrics` on their HTTP port.
"""
_LABELS = """
## Labels

| label | values |
| --- | --- |
| `model`, `version` | name and version in the repository |
| `reason` of `interlace_refusals_total` | [reasons](errors.md#reasons) |
| `reason` of `nv_inference_request_failure` | `REJECTED` (`overloaded`, `deadline`, `not_ready`, \
`quarantined`), `CANCELED`, `BACKEND`, `OTHER` (the caller's error) |
| `state` | `resident`, `loading` or `cold` |
| `stage` | stage of an app |
| `gpu_uuid` | UUID of the GPU |
| `node` | name of the node in the fleet |
| `le` | upper bound of a histogram's bucket |
"""


def page() -> str:
    table = models()
    streams = table.resolve("ident").statistics.streams
    streams.first.add(1.0, 1.0)
    streams.gap.add(1.0, 1.0)
    server = statistics.Metrics(table, lambda: replace(SNAPSHOT, ready={("m", "1"): True}))
    return "\n".join(
        [
            _START,
            *_families(statistics._FAMILIES, server.render()),
            _ROUTER,
            *_families(directory._FAMILIES, asyncio.run(_router())),
            _LABELS,
        ]
    )


def _families(families: Sequence[tuple[str, str, str]], text: str) -> list[str]:
    """The table of families; their labels are those of the samples in ``text``."""
    labels: dict[str, list[str]] = {}
    for begin in text.split("# HELP ")[1:]:
        name, _, samples = begin.partition(" ")
        labels[name] = re.findall(r'[{,](\w+)="', samples)
    rows = []
    for name, kind, help in families:
        shown = ", ".join(f"`{label}`" for label in dict.fromkeys(labels[name])) or "-"
        rows.append([f"`{name}`", kind, shown, sentence(help)])
    return markdown.table(["metric", "type", "labels", "meaning"], rows)


async def _router() -> str:
    clock = WallClock(asyncio.get_running_loop())
    routes = Routes(RoutingLimits(), by_pace(Random(1).choices))
    nodes = directory.NodeDirectory(routes, clock, HeapBudget(1))
    nodes.follow([Node("node", "127.0.0.1", 1, 2)])
    nodes.heard("node", NodeState(1, 1, {}))
    try:
        return nodes.metrics()
    finally:
        nodes.close()
