"""Figure 9: ResNet-50 as 1 to 10 instances that share a V100 evenly, batches of 1 and 8.

python -m bench.papers.primitives.figure9

Every instance always has work. Latencies by share are the published logs (TensorRT), executions
spread as they do there; instances do not slow each other, which is what the paper says of limits.
Left open: the framework, and whether the figure's points go beyond five instances. Multi-Model's
answer from the same profile is below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from bench.papers.primitives.instances import multi_model
from bench.papers.primitives.published import (
    FIVE_OVER_ONE,
    FOUR_LATENCY,
    FOUR_OVER_ONE,
    INTERACTIVE_MS,
)
from bench.papers.primitives.running import Fixed, instances, latencies_ms, played, throughput_rps
from bench.papers.primitives.show import COLOURS, Row, options, report
from bench.papers.primitives.v100 import V100, profile
from interlace.device.simulated.device import Physics
from interlace.perf.latency import surface

MODEL: Final = "resnet50"
COUNTS: Final = (1, 2, 4, 5, 10)
BATCHES: Final = (1, 8)
_RATE_RPS: Final = 3_000.0


class Crowd(NamedTuple):
    """So many instances: rows/s of them all, p99 in ms of their batches."""

    rps: float
    p99_ms: float


def crowd(count: int, batch: int, seconds: float) -> Crowd:
    """Instances of 100 / ``count`` % each."""
    record = played(
        instances(MODEL, 100 // count, batch, count),
        {MODEL: profile(MODEL)},
        Fixed(),
        Physics(jitter=True),
        V100,
        {MODEL: _RATE_RPS},
        seconds,
    )
    p99_ms = float(np.percentile(latencies_ms(record, MODEL), 99))
    return Crowd(throughput_rps(record, MODEL), p99_ms)


def main(arguments: list[str] | None = None, seconds: float = 2.0) -> list[Row]:
    """Print, draw, and return the rows."""
    chosen = options(__doc__).parse_args(arguments)
    seen = {(b, n): crowd(n, b, seconds) for b in BATCHES for n in COUNTS}
    one, four = seen[1, 1], seen[1, 4]
    rows = [
        Row("1 row: 4 instances over 1, throughput (more than)", FOUR_OVER_ONE, four.rps / one.rps),
        Row("1 row: 4 instances over 1, p99", FOUR_LATENCY, four.p99_ms / one.p99_ms),
        Row(
            "8 rows: 5 instances over 1, throughput", FIVE_OVER_ONE, seen[8, 5].rps / seen[8, 1].rps
        ),
        Row("8 rows: p99 of 5 instances (below)", INTERACTIVE_MS, seen[8, 5].p99_ms, " ms"),
        Row("8 rows: 10 instances over 5, throughput", 1.0, seen[8, 10].rps / seen[8, 5].rps),
        Row("8 rows: 10 instances over 5, p99", None, seen[8, 10].p99_ms / seen[8, 5].p99_ms),
    ]
    for (batch, count), found in seen.items():
        rows.append(
            Row(f"{batch} rows, {count} x {100 // count} %: images", None, found.rps, " /s")
        )
        rows.append(
            Row(f"{batch} rows, {count} x {100 // count} %: p99", None, found.p99_ms, " ms")
        )
    known = surface(profile(MODEL), "p99_ms")
    for batch in BATCHES:
        advice = multi_model(known, (100, 50, 25, 20, 10), INTERACTIVE_MS, batch)
        if advice:
            what = (
                f"Multi-Model, batches up to {batch}, 50 ms: {advice.count} x {advice.share_pct} %"
            )
            rows.append(Row(what, None, advice.rows_per_s, " /s"))

    def draw(panels: Sequence[Axes]) -> None:
        for axes, batch in zip(panels, BATCHES, strict=True):
            axes.bar(range(len(COUNTS)), [seen[batch, n].rps for n in COUNTS], color=COLOURS[5])
            axes.set_xticks(range(len(COUNTS)), [f"{n} x {100 // n} %" for n in COUNTS], fontsize=8)
            axes.set(title=f"batch of {batch}", ylabel="images/s")
            right = axes.twinx()
            right.plot([seen[batch, n].p99_ms for n in COUNTS], "o-", color=COLOURS[0])
            right.set(ylabel="p99, ms", ylim=(0, None))

    return report(__doc__, rows, draw, "figure9", chosen.out, panels=2)


if __name__ == "__main__":
    main()
