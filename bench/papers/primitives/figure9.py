"""Figure 9: ResNet-50 as 1 to 10 instances that share a V100 evenly, batches of 1 and 8.

Every instance always has work. Latencies by share are the published logs (TensorRT), executions
spread as they do there; instances do not slow each other, which is what the paper says of limits.
Left open: the framework, and whether the figure's points go beyond five instances. Multi-Model's
answer from the same profile is below.
"""

from typing import Final

import numpy as np

from bench.harness import Report, Row, main, panels, rate_and_latency
from bench.papers.primitives import published as paper
from bench.papers.primitives.instances import multi_model
from bench.papers.primitives.running import Crowd, crowd
from bench.papers.primitives.v100 import V100, profile
from interlace.perf.latency import surface

MODEL: Final = "resnet50"
COUNTS: Final = (1, 2, 4, 5, 10)
BATCHES: Final = (1, 8)
_RATE_RPS: Final = 3_000.0


def figure9(*, seconds: float = 2.0) -> Report:
    """Instances of 100 / n % each."""
    seen = {(b, n): one_crowd(n, b, seconds) for b in BATCHES for n in COUNTS}
    one, four, ten = seen[1, 1], seen[1, 4], seen[8, 10]
    five = seen[8, 5]
    rows = [
        Row(
            "1 row: 4 instances over 1, throughput (more than)",
            paper.FOUR_OVER_ONE,
            four.rps / one.rps,
        ),
        Row("1 row: 4 instances over 1, p99", paper.FOUR_LATENCY, p99_ms(four) / p99_ms(one)),
        Row(
            "8 rows: 5 instances over 1, throughput", paper.FIVE_OVER_ONE, five.rps / seen[8, 1].rps
        ),
        Row("8 rows: p99 of 5 instances (below)", paper.INTERACTIVE_MS, p99_ms(five), " ms"),
        Row("8 rows: 10 instances over 5, throughput", 1.0, ten.rps / five.rps),
        Row("8 rows: 10 instances over 5, p99", None, p99_ms(ten) / p99_ms(five)),
    ]
    for (batch, count), found in seen.items():
        name = f"{batch} rows, {count} x {100 // count} %"
        rows.append(Row(f"{name}: images", None, found.rps, " /s"))
        rows.append(Row(f"{name}: p99", None, p99_ms(found), " ms"))
    known = surface(profile(MODEL), "p99_ms")
    for batch in BATCHES:
        advice = multi_model(known, (100, 50, 25, 20, 10), paper.INTERACTIVE_MS, batch)
        if advice:
            best = f"{advice.count} x {advice.share_pct} %"
            what = f"Multi-Model, batches up to {batch}, 50 ms: {best}"
            rows.append(Row(what, None, advice.rows_per_s, " /s"))
    drawn = [
        rate_and_latency(
            COUNTS,
            [seen[batch, n].rps for n in COUNTS],
            [p99_ms(seen[batch, n]) for n in COUNTS],
            title=f"batch of {batch}",
            xlabel="instances of even shares",
        )
        for batch in BATCHES
    ]
    return Report(rows, panels(*drawn), (6.4, 3.0))


def one_crowd(count: int, batch: int, seconds: float) -> Crowd:
    """So many instances that share the GPU evenly."""
    return crowd(profile(MODEL), V100, 100 // count, batch, count, _RATE_RPS, seconds)


def p99_ms(found: Crowd) -> float:
    """Of its batches."""
    return float(np.percentile(found.taken_ms, 99))


if __name__ == "__main__":
    main(figure9)
