"""Table 1 and Figures 9, 10 and 12."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
from matplotlib.figure import Figure

from bench.harness import Picture, Report, Row, bars, each, panels
from bench.papers.dstack import trial, v100
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Partition, Plan, Slot
from interlace.sim.drawings import tiles
from interlace.sim.record import Execution, RunRecord
from interlace.sim.report import jain
from interlace.sim.workload.traces import ReplayedTrace

TABLE_1_MODELS: Final = ("alexnet", "mobilenet", "resnet50", "vgg19")
TABLE_1_SYSTEMS: Final = ("triton", "dstack", "interlace")
_IMAGES: Final = 10_000
_HOUR_MS: Final = 3.6e6
#: 10,000 of each in the published time.
_RATE_RPS: Final = 280.0


def table1(*, images: Annotated[int, "of each model; the paper has 10000"] = 1_000) -> Report:
    """Table 1: 10,000 images of each of four models, under Triton and under D-STACK.

    All requests are there at the start, 10,000 of each model (1,000 without --images; times are
    then scaled up). Left open: deadlines (there are none in a job of this kind, so an hour each;
    plans are made for Table 6's SLOs at 280/s of each model), and what a request costs beside its
    inference. Inference alone takes Triton, one batch of 16 after the other, 63 s at Table 6's
    runtimes. What we add: the row of our own scheduler.
    """
    found = {name: completion_s(name, images) * _IMAGES / images for name in TABLE_1_SYSTEMS}
    rows = each("{}", found, " s", v100.TABLE_1_S)
    ours, printed = (
        found["dstack"] / found["triton"],
        v100.TABLE_1_S["dstack"] / v100.TABLE_1_S["triton"],
    )
    rows.append(Row("D-STACK saves", 100 * (1 - printed), 100 * (1 - ours), " %"))
    return Report(rows)


def completion_s(name: str, images: int) -> float:
    """When the last of so many images of each model is answered."""
    case = trial.of_table_6(dict.fromkeys(TABLE_1_MODELS, _RATE_RPS), v100.profiles())
    patient = case._replace(slos_ms=dict.fromkeys(TABLE_1_MODELS, _HOUR_MS))
    jobs = {model: ReplayedTrace(np.zeros(images)) for model in TABLE_1_MODELS}
    found = trial.run(name, patient, 1.0, jobs, trial.planned(name, case))
    ended_ms = max(one.answered_ms for one in found.record.served)
    return (ended_ms - found.record.from_ms) / 1000.0


FIGURE_9_MODELS = ("alexnet", "resnet50", "vgg19")
_FROM_MS, _SHOWN_MS = 1_000.0, 200.0


def figure9(*, seconds: float = 10.0) -> Report:
    """Figure 9a to 9c: schedules of Alexnet, ResNet-50 and VGG-19.

    Temporal sharing, the session without and with the dynamic fill. The use of the GPU counts every
    batch at its model's knee. Left open: the load (16 images of each model in an SLO).
    """
    found = schedules(seconds)

    def draw(_: Figure) -> Figure:
        shown = tiles(_side_by_side(found), _FROM_MS, _FROM_MS + _SHOWN_MS)
        for axes, (name, one) in zip(shown.axes, found.items(), strict=False):
            axes.set_title(f"{name}: {one.used_pct:.0f} % used", fontsize=9)
            axes.set_ylabel("knees, %")
        return shown

    rows = [
        Row(f"9{part}: {name}, use", v100.FIGURE_9_PCT[name], one.used_pct, " %")
        for part, (name, one) in zip("abc", found.items(), strict=True)
    ]
    return Report(rows, more=[Picture(draw, suffix="abc.png")])


def schedules(seconds: float) -> Mapping[str, trial.Figures]:
    """9a to 9c."""
    rates = {m: v100.BATCH * 1000.0 / v100.TABLE_6[m].slo_ms for m in FIGURE_9_MODELS}
    known = trial.of_table_6(rates, v100.profiles())
    return {name: trial.run(name, known, seconds) for name in v100.FIGURE_9_PCT}


def _side_by_side(abc: Mapping[str, trial.Figures]) -> RunRecord:
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
    knee_pct = v100.TABLE_6[one.model].knee_pct
    return msgspec.structs.replace(one, gpu=name, share_pct=min(one.share_pct, knee_pct))


FIGURE_10_SYSTEMS: Final = ("temporal", "dstack", "throughput", "maxmin")
_GAIN: Final = 0.3


def figure10(*, seconds: float = 10.0) -> Report:
    """Figure 10: throughput and GPU time of four models by scheduler: fairness.

    Table 6's SLOs, shares and batches, gaps uniformly distributed. Throughput is what was answered,
    in time or late. Left open: the rates (section 7's) and what a whole GPU gains over the knee
    (nothing, and in further rows 30 % of the latency).
    """
    known = trial.of_table_6(v100.FEW_RPS, v100.profiles())
    found = {name: trial.run(name, known, seconds) for name in FIGURE_10_SYSTEMS}
    rates = {name: list(one.answered_rps.values()) for name, one in found.items()}
    times = {name: list(one.busy_s.values()) for name, one in found.items()}
    right = bars(v100.FEW_RPS, times, f"runtime in {seconds:g} s, s", legend=False)
    rows = _compared(found)
    # The same factors where temporal sharing's whole GPU is faster than the knee.
    known = trial.of_table_6(v100.FEW_RPS, v100.profiles(gain=_GAIN))
    faster = {name: trial.run(name, known, seconds) for name in ("dstack", "temporal")}
    rows += _over_temporal(f", {100 * _GAIN:.0f} % faster at 100 %", faster)
    return Report(rows, panels(bars(v100.FEW_RPS, rates, "images/s"), right))


def _over_temporal(what: str, found: Mapping[str, trial.Figures]) -> list[Row]:
    ours, turns = found["dstack"].answered_rps, found["temporal"].answered_rps
    gains = {m: ours[m] / turns[m] for m in v100.OVER_TEMPORAL}
    return each(f"10a: dstack / temporal{what}, {{}}", gains, published=v100.OVER_TEMPORAL)


def _compared(found: Mapping[str, trial.Figures]) -> list[Row]:
    ours, fair = found["dstack"].answered_rps, found["maxmin"]
    part = ours["alexnet"] / found["throughput"].answered_rps["alexnet"]
    more = fair.busy_s["mobilenet"] - found["dstack"].busy_s["mobilenet"]
    gains = {m: min(99.0, ours[m] / max(fair.answered_rps[m], 1e-9)) for m in ("resnet50", "vgg19")}
    rows = [
        *_over_temporal("", found),
        Row("10a: dstack / max-throughput, alexnet (more than)", v100.OF_MAX_THROUGHPUT, part),
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


CLUSTER_MODELS = ("mobilenet", "alexnet", "resnet50", "vgg19")
SCHEMES = ("exclusive", "temporal", "dstack", "interlace")
KNEES_PCT = {"mobilenet": 25, "alexnet": 25, "resnet50": 50, "vgg19": 50}
_SLOWER = 2.0
_OFFERED_RPS = 3_800.0


def figure12(*, seconds: float = 4.0) -> Report:
    """Figure 12: four T4s, each with a model of its own, with all four in turns, or under D-STACK.

    Left open: knees and latencies on a T4. Knees are those of the primitives paper (section VI-B);
    a batch of 16 takes twice the V100's time, and SLOs are twice Table 6's. 3,800 requests/s are
    offered, in inverse proportion to the SLOs. Throughput is what was answered, in time or late.
    """
    found = {scheme: served(scheme, seconds) for scheme in SCHEMES}
    series = {name: [one.answered_rps[m] for m in CLUSTER_MODELS] for name, one in found.items()}
    return Report(_cluster_compared(found), bars(CLUSTER_MODELS, series, "images/s"), (6.0, 3.0))


def cluster() -> trial.Case:
    """Four T4s and all that the link brings."""
    known = {
        m: v100.profile(m, KNEES_PCT[m], v100.TABLE_6[m].run_ms * _SLOWER, kind="t4")
        for m in CLUSTER_MODELS
    }
    slos = {m: v100.TABLE_6[m].slo_ms * _SLOWER for m in CLUSTER_MODELS}
    whole = sum(1.0 / slo_ms for slo_ms in slos.values())
    rates = {m: _OFFERED_RPS / slos[m] / whole for m in CLUSTER_MODELS}
    return trial.Case(rates, known, KNEES_PCT, slos, uniform_fleet(GPU_KINDS["t4"], 4))


def exclusive(case: trial.Case) -> Plan:
    """A T4 for each model."""
    pairs = zip(case.gpus.gpus, CLUSTER_MODELS, strict=True)
    slots = ((gpu.id, Slot(m, v100.BATCH, case.rates_rps[m])) for gpu, m in pairs)
    return Plan(tuple(Partition(f"{gpu}:0", gpu, 100, (slot,)) for gpu, slot in slots))


def served(scheme: str, seconds: float) -> trial.Figures:
    """One run of a scheme."""
    case = cluster()
    alone = scheme == "exclusive"
    return trial.run(
        "triton" if alone else scheme, case, seconds, plan=exclusive(case) if alone else None
    )


def _cluster_compared(found: Mapping[str, trial.Figures]) -> list[Row]:
    alone, turns, ours = (found[n].total_rps for n in ("exclusive", "temporal", "dstack"))
    rows = [
        Row("dstack / temporal", v100.CLUSTER_GAIN, ours / turns),
        Row("temporal / exclusive (about)", 1.0, turns / alone),
        Row("dstack / exclusive", None, ours / alone),
    ]
    for name, one in found.items():
        rows += each(f"{name}: {{}}", one.answered_rps, "/s")
        rows.append(Row(f"{name}: missed", None, 100 * one.missed_of_all, " %"))
    return rows
