"""Figure 12: more instances than a V100 has shares for, AlexNet of 25 % and ResNet-50 of 40 %.

The text says of a and b that throughput does not grow beyond 100 % and latency climbs rapidly; it
prints no numbers. Left open: the batch (8 is taken) and how far the figure goes (twice the GPU).

Figure 12c, memory throughput of ten kernels of VGG-19 beside one to five others, is not
reproduced: the simulated GPU has no memory system, and kernels' counters need a real one. What the
simulation takes from it is that instances with limits do not slow each other.
"""

from math import ceil
from typing import Final

from bench.harness import Report, Row, main, panels, rate_and_latency
from bench.papers.primitives.published import FIGURE_12_SHARES_PCT
from bench.papers.primitives.running import Crowd, crowd
from bench.papers.primitives.v100 import V100, profile

BATCH: Final = 8
_RATE_RPS: Final = 10_000.0


def figure12(*, seconds: float = 2.0) -> Report:
    """Instances up to twice the GPU."""
    rows: list[Row] = []
    seen: dict[str, dict[int, Crowd]] = {}
    for model, share in FIGURE_12_SHARES_PCT.items():
        fits, most = ceil(100 / share), 200 // share
        found = seen[model] = {
            n: crowd(profile(model), V100, share, BATCH, n, _RATE_RPS, seconds)
            for n in range(1, most + 1)
        }
        full, over = found[fits], found[most]
        name = f"{model} of {share} %"
        rows += [
            Row(f"{name}: {fits} over 1, throughput", None, full.rps / found[1].rps),
            Row(f"{name}: {fits} over 1, p99", None, p99_ms(full) / p99_ms(found[1])),
            Row(f"{name}: {most} over {fits}, throughput", 1.0, over.rps / full.rps),
            Row(f"{name}: {most} over {fits}, p99 (climbs)", None, p99_ms(over) / p99_ms(full)),
        ]
        for count, one in found.items():
            what = f"{name}: {count} ({count * share} %)"
            rows.append(Row(f"{what}, images", None, one.rps, " /s"))
            rows.append(Row(f"{what}, p99", None, p99_ms(one), " ms"))
    drawn = [
        rate_and_latency(
            [count * FIGURE_12_SHARES_PCT[model] for count in found],
            [one.rps for one in found.values()],
            [p99_ms(one) for one in found.values()],
            mark=100.0,
            title=model,
            xlabel="sum of shares, %",
        )
        for model, found in seen.items()
    ]
    return Report(rows, panels(*drawn), (6.4, 3.0))


def p99_ms(one: Crowd) -> float:
    """Of its batches."""
    return float(one.taken_ms[int(0.99 * len(one.taken_ms))])


if __name__ == "__main__":
    main(figure12)
