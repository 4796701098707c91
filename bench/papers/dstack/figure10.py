"""Figure 10: throughput and GPU time of four models by scheduler: fairness.

Alexnet, Mobilenet, ResNet-50 and VGG-19 with Table 6's SLOs, shares and batches for 10 s, gaps
uniformly distributed: temporal sharing, D-STACK, max-throughput, max-min. Throughput is what was
answered, in time or late. Left open: the rates; here those of section 7 (700, 700, 320 and 160/s).
The paper's factors over temporal sharing (2 for the heavy two, 4 for the light two) are words about
bars; so is the rest, and what is only drawn has no published figure here. Left open, too: what a
whole GPU gains over the knee; nothing here, and in further rows 30 % of the latency.
"""

from collections.abc import Mapping
from typing import Final

from bench.harness import Report, Row, bars, each, main, panels
from bench.papers.dstack.published import FEW_RPS, OF_MAX_THROUGHPUT, OVER_TEMPORAL
from bench.papers.dstack.trial import Figures, of_table_6, run
from bench.papers.dstack.v100 import profiles
from interlace.sim.report.figures import jain

SYSTEMS: Final = ("temporal", "dstack", "throughput", "maxmin")
_GAIN: Final = 0.3


def figure10(*, seconds: float = 10.0) -> Report:
    """Both panels."""
    known = of_table_6(FEW_RPS, profiles())
    found = {name: run(name, known, seconds) for name in SYSTEMS}
    rates = {name: list(one.answered_rps.values()) for name, one in found.items()}
    times = {name: list(one.busy_s.values()) for name, one in found.items()}
    right = bars(FEW_RPS, times, f"runtime in {seconds:g} s, s", legend=False)
    rows = _compared(found)
    # The same factors where temporal sharing's whole GPU is faster than the knee.
    known = of_table_6(FEW_RPS, profiles(gain=_GAIN))
    faster = {name: run(name, known, seconds) for name in ("dstack", "temporal")}
    rows += _over_temporal(f", {100 * _GAIN:.0f} % faster at 100 %", faster)
    return Report(rows, panels(bars(FEW_RPS, rates, "images/s"), right))


def _over_temporal(what: str, found: Mapping[str, Figures]) -> list[Row]:
    ours, turns = found["dstack"].answered_rps, found["temporal"].answered_rps
    gains = {m: ours[m] / turns[m] for m in OVER_TEMPORAL}
    return each(f"10a: dstack / temporal{what}, {{}}", gains, published=OVER_TEMPORAL)


def _compared(found: Mapping[str, Figures]) -> list[Row]:
    ours, fair = found["dstack"].answered_rps, found["maxmin"]
    part = ours["alexnet"] / found["throughput"].answered_rps["alexnet"]
    more = fair.busy_s["mobilenet"] - found["dstack"].busy_s["mobilenet"]
    gains = {m: min(99.0, ours[m] / max(fair.answered_rps[m], 1e-9)) for m in ("resnet50", "vgg19")}
    rows = [
        *_over_temporal("", found),
        Row("10a: dstack / max-throughput, alexnet (more than)", OF_MAX_THROUGHPUT, part),
        Row("10b: max-min's mobilenet runs longer than dstack's, by", None, more, " s"),
        *each("10a: dstack / max-min, {} (more than)", gains, published=1.0),
    ]
    for name, one in found.items():
        rows += each(f"10a: {name}, {{}}", one.answered_rps, "/s")
        rows += each(f"10b: {name}, {{}}", one.busy_s, " s")
        even = jain([*one.busy_s.values()])
        rows.append(Row(f"10b: {name}, Jain's index of GPU time", None, even))
        rows.append(Row(f"{name}: missed", None, 100 * one.missed_of_all, " %"))
    return rows


if __name__ == "__main__":
    main(figure10)
