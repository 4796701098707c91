"""Figure 12: more instances than a V100 has shares for, AlexNet of 25 % and ResNet-50 of 40 %.

python -m bench.papers.primitives.figure12

The text says of a and b that throughput does not grow beyond 100 % and latency climbs rapidly; it
prints no numbers. Left open: the batch (8 is taken) and how far the figure goes (twice the GPU).

Figure 12c, memory throughput of ten kernels of VGG-19 beside one to five others, is not
reproduced: the simulated GPU has no memory system, and kernels' counters need a real one. What the
simulation takes from it is that instances with limits do not slow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from matplotlib.axes import Axes

from bench.papers.primitives.figure9 import Crowd
from bench.papers.primitives.published import FIGURE_12_SHARES_PCT
from bench.papers.primitives.running import Fixed, instances, latencies_ms, played, throughput_rps
from bench.papers.primitives.show import COLOURS, Row, options, report
from bench.papers.primitives.v100 import V100, profile
from interlace.device.simulated.device import Physics

BATCH: Final = 8
_RATE_RPS: Final = 10_000.0


def crowd(model: str, count: int, seconds: float) -> Crowd:
    """So many instances of the model's share."""
    record = played(
        instances(model, FIGURE_12_SHARES_PCT[model], BATCH, count),
        {model: profile(model)},
        Fixed(),
        Physics(jitter=True),
        V100,
        {model: _RATE_RPS},
        seconds,
    )
    taken = latencies_ms(record, model)
    return Crowd(throughput_rps(record, model), float(taken[int(0.99 * len(taken))]))


def main(arguments: list[str] | None = None, seconds: float = 2.0) -> list[Row]:
    """Print, draw, and return the rows."""
    chosen = options(__doc__).parse_args(arguments)
    rows: list[Row] = []
    seen: dict[str, dict[int, Crowd]] = {}
    for model, share in FIGURE_12_SHARES_PCT.items():
        fits, most = ceil(100 / share), 200 // share
        found = seen[model] = {n: crowd(model, n, seconds) for n in range(1, most + 1)}
        full, over = found[fits], found[most]
        name = f"{model} of {share} %"
        rows += [
            Row(f"{name}: {fits} over 1, throughput", None, full.rps / found[1].rps),
            Row(f"{name}: {fits} over 1, p99", None, full.p99_ms / found[1].p99_ms),
            Row(f"{name}: {most} over {fits}, throughput", 1.0, over.rps / full.rps),
            Row(f"{name}: {most} over {fits}, p99 (climbs)", None, over.p99_ms / full.p99_ms),
        ]
        for count, one in found.items():
            rows.append(Row(f"{name}: {count} ({count * share} %), images", None, one.rps, " /s"))
            rows.append(Row(f"{name}: {count} ({count * share} %), p99", None, one.p99_ms, " ms"))

    def draw(panels: Sequence[Axes]) -> None:
        for axes, (model, found) in zip(panels, seen.items(), strict=True):
            totals = [count * FIGURE_12_SHARES_PCT[model] for count in found]
            axes.plot(totals, [one.rps for one in found.values()], "s-", color=COLOURS[5])
            axes.set(title=model, xlabel="sum of shares, %", ylabel="images/s", ylim=(0, None))
            axes.axvline(100, color="black", lw=0.8)
            right = axes.twinx()
            right.plot(totals, [one.p99_ms for one in found.values()], "o-", color=COLOURS[0])
            right.set(ylabel="p99, ms", ylim=(0, None))

    return report(__doc__, rows, draw, "figure12", chosen.out, panels=2)


if __name__ == "__main__":
    main()
