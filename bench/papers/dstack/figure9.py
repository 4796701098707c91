"""Figure 9: schedules of Alexnet, ResNet-50 and VGG-19 (a to c), and the ideal scheduler (d).

9a to 9c: temporal sharing, the session without and with the dynamic fill. The use of the GPU counts
every batch at its model's knee. Left open: the load; here 16 images of each model in an SLO (640,
320 and 160/s), what one planned batch per SLO serves. The printed 44 and 60 % are what full slices
and one full batch in each SLO come to: 44.3 and 59.5 % by Table 6.

9d: three ConvNets, 100 us slots, every next kernel known. Left open: the kernels (here each has its
model's knee; beside it, kernels that need more and less with the same sum), SLOs (twice the
runtime), batches (single inferences), the load (all that a model alone could serve, of each), and
latency below the knee: GSLICE's parts are three quarters of knees. The bars have Figure 11's fitted
share^-2; with the share^-1 of the authors' logs GSLICE does more than D-STACK, against the paper.
"Work" is inferences at their knees and runtimes, in % of the GPU: inferences alone favour who
serves the shortest.
"""

from collections.abc import Mapping

import msgspec
from matplotlib.figure import Figure

from bench.harness import Picture, Report, Row, bars, each, main
from bench.papers.dstack import published as paper
from bench.papers.dstack.convnets import ALIKE, SLOT_MS, case, kernels, slos_ms
from bench.papers.dstack.published import CONVNETS, TABLE_6
from bench.papers.dstack.slotted_schedule import SlottedSchedule, slotted
from bench.papers.dstack.trial import Figures, of_table_6, run
from bench.papers.dstack.v100 import STEEP, profiles
from interlace.sim.record import Execution, RunRecord
from interlace.sim.report.draw import tiles

MODELS = ("alexnet", "resnet50", "vgg19")
_FROM_MS, _SHOWN_MS = 1_000.0, 200.0
OTHERS = ("temporal", "gslice", "dstack")


def figure9(*, seconds: float = 10.0) -> Report:
    """Schedules and use of the GPU."""
    abc, best, whole = schedules(seconds), ideals(seconds), convnets(seconds)
    rates = {"ideal": next(iter(best.values())).ideal.rows_per_s}
    rates |= {name: one.answered_rps for name, one in whole.items()}
    series = {name: [each_rps[m] for m in CONVNETS] for name, each_rps in rates.items()}
    draw_d = bars(CONVNETS, series, "inferences/s")

    def draw_abc(_: Figure) -> Figure:
        shown = tiles(_side_by_side(abc), _FROM_MS, _FROM_MS + _SHOWN_MS)
        for axes, (name, found) in zip(shown.axes, abc.items(), strict=False):
            axes.set_title(f"{name}: {found.used_pct:.0f} % used", fontsize=9)
            axes.set_ylabel("knees, %")
        return shown

    pictures = [Picture(draw_d, (5.0, 3.0), "d.svg"), Picture(draw_abc, suffix="abc.png")]
    return Report(_compared(abc, best, whole, rates) + _unfitted(seconds), more=pictures)


def schedules(seconds: float) -> Mapping[str, Figures]:
    """9a to 9c."""
    rates = {m: paper.BATCH * 1000.0 / TABLE_6[m].slo_ms for m in MODELS}
    known = of_table_6(rates, profiles())
    return {name: run(name, known, seconds) for name in paper.FIGURE_9_PCT}


def ideals(seconds: float) -> Mapping[str, SlottedSchedule]:
    """9d's ideal, for kernels that are alike and for some that are not."""
    slots = int(seconds * 1000.0 / SLOT_MS)
    made = {"kernels at the model's knee": kernels(ALIKE), "kernels from 0.2 to 1.4": kernels()}
    return {name: slotted(ones, slos_ms(), SLOT_MS, slots) for name, ones in made.items()}


def convnets(seconds: float, steep: float = STEEP) -> Mapping[str, Figures]:
    """9d's schedulers that run models whole."""
    known = case({m: 1000.0 / run_ms for m, (_, run_ms) in CONVNETS.items()}, steep)
    return {name: run(name, known, seconds) for name in OTHERS}


def work_pct(rates_rps: Mapping[str, float]) -> float:
    """What inferences of the ConvNets are, at their knees, in % of the GPU."""
    return sum(rates_rps[m] * knee * run_ms / 1000.0 for m, (knee, run_ms) in CONVNETS.items())


def _unfitted(seconds: float) -> list[Row]:
    """9d with share^-1 below the knee."""
    ones = convnets(seconds, 0.0)
    found = {name: ones[name].answered_rps for name in ("gslice", "dstack")}
    work = {name: work_pct(rates) for name, rates in found.items()}
    total = {name: sum(rates.values()) for name, rates in found.items()}
    rows = each("9d: {}, work, share^-1", work, " %")
    return rows + each("9d: {}, inferences, share^-1", total, "/s")


def _compared(
    abc: Mapping[str, Figures],
    best: Mapping[str, SlottedSchedule],
    whole: Mapping[str, Figures],
    rates: Mapping[str, Mapping[str, float]],
) -> list[Row]:
    used = {name: one.used_pct for name, one in whole.items()}
    ideals_pct = {name: 100 * one.ideal.utilisation for name, one in best.items()}
    of_ideal = whole["dstack"].total_rps / sum(rates["ideal"].values())
    rows = [
        Row(f"9{part}: {name}, use", paper.FIGURE_9_PCT[name], found.used_pct, " %")
        for part, (name, found) in zip("abc", abc.items(), strict=True)
    ]
    rows += each("9d: ideal, {}, use", ideals_pct, " %", paper.IDEAL_PCT)
    rows += each("9d: {}, use", used, " %", {"dstack": paper.DSTACK_PCT})
    rows.append(Row("9d: dstack / ideal, inferences", paper.DSTACK_OF_IDEAL, of_ideal))
    for name, one in rates.items():
        rows.append(Row(f"9d: {name}, work", None, work_pct(one), " %"))
        rows += each(f"9d: {name}, {{}}", one, "/s")
    return rows


def _side_by_side(abc: Mapping[str, Figures]) -> RunRecord:
    """The three runs as one of three accelerators, every batch as high as its model's knee."""
    first = next(iter(abc.values())).record
    executions = [
        _renamed(one, name)
        for name, found in abc.items()
        for one in found.record.executions
        if one.started_ms < first.from_ms + _FROM_MS + _SHOWN_MS
    ]
    return RunRecord(first.from_ms, first.until_ms, tuple(abc), first.served, executions, ())


def _renamed(one: Execution, name: str) -> Execution:
    knee_pct = TABLE_6[one.model].knee_pct
    return msgspec.structs.replace(one, gpu=name, share_pct=min(one.share_pct, knee_pct))


if __name__ == "__main__":
    main(figure9)
