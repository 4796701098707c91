"""Figures 1 and 9 and Table 4: shares and instances on a simulated V100 and T4."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.harness import COLOURS, Report, Row, each, panels, rate_and_latency
from bench.papers.dstack.v100 import TABLE_6
from bench.papers.dstack.v100 import profile as shaped
from bench.papers.primitives import running, v100
from bench.papers.primitives.running import Crowd, crowd, multi_model
from bench.papers.primitives.v100 import profile
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Trait
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.physics import MECHANISMS, Physics, Transfer, physics_of
from interlace.perf.latency import surface
from interlace.sim.record import RunRecord

MOST_ROWS: Final = 32
_RATE_RPS: Final = 1920.0 / 4
_ROUNDING_MS: Final = 1e-6
_OFTEN, _KEEPS = 0.1, 0.05

Latencies = Mapping[str, NDArray[np.float64]]


def figure1(*, seconds: float = 5.0) -> Report:
    """Figure 1: latencies of four models on one V100 under three ways to share it.

    Temporal sharing, default MPS, and controlled spatial sharing (CSS, 15, 15, 30 and 40 %);
    batches adapt to an SLO of 50 ms. The text makes nine statements (1: it is so here, 0: not).
    "Often" is more than 10 % of a model's batches beyond the SLO, "keeps" at most 5 %. Left open:
    the load (1,920 images/s, a quarter for each model), the framework (TensorRT) and the batches
    (up to 32).
    """
    records = tried(seconds)
    seen = {way: {m: running.latencies_ms(r, m) for m in v100.MODELS} for way, r in records.items()}
    rps = {
        way: sum(running.throughput_rps(r, m) for m in v100.MODELS) for way, r in records.items()
    }
    rows = each("{}", statements(seen, rps), published=1.0)
    for way, found in seen.items():
        for model in v100.MODELS:
            late, rate = 100 * missed(found[model]), running.throughput_rps(records[way], model)
            rows += [
                Row(f"{way}: {model}, median", None, float(np.median(found[model])), " ms"),
                Row(f"{way}: {model}, beyond 50 ms", None, late, " %"),
                Row(f"{way}: {model}, images", None, rate, " /s"),
            ]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 3)
        for axes, (way, found) in zip(panels, seen.items(), strict=True):
            for model, colour in zip(v100.MODELS, COLOURS, strict=False):
                values = found[model][np.linspace(0, len(found[model]) - 1, 200).astype(int)]
                axes.plot(values, np.linspace(0, 1, 200), color=colour, label=model)
            axes.axvline(v100.FIGURE_1_SLO_MS, color="black", lw=0.8)
            axes.set(title=way, xlabel="latency, ms", xlim=(0, 100))
        panels[0].legend(frameon=False, fontsize=8)

    return Report(rows, draw, (9.6, 3.0))


def shared(physics: Physics, shares_pct: Mapping[str, int], seconds: float) -> RunRecord:
    """All four models side by side."""
    partitions = [p for m in v100.MODELS for p in running.instances(m, shares_pct[m], MOST_ROWS, 1)]
    rates = dict.fromkeys(v100.MODELS, _RATE_RPS)
    profiles = {model: profile(model) for model in v100.MODELS}
    dispatcher = running.Adaptive(0.9 * v100.FIGURE_1_SLO_MS)
    return running.kept_busy(partitions, profiles, dispatcher, physics, v100.V100, rates, seconds)


def tried(seconds: float) -> dict[str, RunRecord]:
    """The three ways."""
    whole = dict.fromkeys(v100.MODELS, 100)
    return {
        "temporal": shared(Physics(contention=running.time_sliced, jitter=True), whole, seconds),
        "MPS": shared(Physics(contention=running.FirstCome(), jitter=True), whole, seconds),
        "CSS": shared(Physics(jitter=True), v100.FIGURE_1_SHARES_PCT, seconds),
    }


def missed(latencies: NDArray[np.float64]) -> float:
    """The part of a model's batches beyond the SLO."""
    return float(np.mean(latencies > v100.FIGURE_1_SLO_MS + _ROUNDING_MS))


def statements(seen: Mapping[str, Latencies], rps: Mapping[str, float]) -> dict[str, bool]:
    """What the text says of the figure."""
    late = {way: {m: missed(found[m]) for m in v100.MODELS} for way, found in seen.items()}
    middle = {
        way: {m: float(np.median(found[m])) for m in v100.MODELS} for way, found in seen.items()
    }
    return {
        "temporal: VGG-19 misses 50 ms often": late["temporal"]["vgg19"] > _OFTEN,
        "temporal: ResNet-50 misses 50 ms often": late["temporal"]["resnet50"] > _OFTEN,
        "MPS: VGG-19 keeps 50 ms": late["MPS"]["vgg19"] <= _KEEPS,
        "MPS: ResNet-50 misses many times": late["MPS"]["resnet50"] > _OFTEN,
        **{
            f"MPS: {m} is slower than under temporal sharing and CSS": middle["MPS"][m]
            > max(middle["temporal"][m], middle["CSS"][m])
            for m in v100.MODELS
            if m != "vgg19"
        },
        "CSS: nobody misses 50 ms": max(late["CSS"].values()) <= _KEEPS,
        "CSS: more throughput than the other two": rps["CSS"] > max(rps["MPS"], rps["temporal"]),
    }


MODEL: Final = "resnet50"
COUNTS: Final = (1, 2, 4, 5, 10)
BATCHES: Final = (1, 8)
_OFFERED_RPS: Final = 3_000.0


def figure9(*, seconds: float = 2.0) -> Report:
    """Figure 9: ResNet-50 as 1 to 10 instances that share a V100 evenly, batches of 1 and 8.

    Every instance always has work. Latencies by share are the published logs (TensorRT), executions
    spread as they do there; instances do not slow each other, which is what the paper says of
    limits. Left open: the framework, and whether the figure's points go beyond five instances.
    Multi-Model's answer from the same profile is below.
    """
    seen = {(b, n): one_crowd(n, b, seconds) for b in BATCHES for n in COUNTS}
    one, four, ten = seen[1, 1], seen[1, 4], seen[8, 10]
    five = seen[8, 5]
    rows = [
        Row(
            "1 row: 4 instances over 1, throughput (more than)",
            v100.FOUR_OVER_ONE,
            four.rps / one.rps,
        ),
        Row("1 row: 4 instances over 1, p99", v100.FOUR_LATENCY, p99_ms(four) / p99_ms(one)),
        Row(
            "8 rows: 5 instances over 1, throughput", v100.FIVE_OVER_ONE, five.rps / seen[8, 1].rps
        ),
        Row("8 rows: p99 of 5 instances (below)", v100.INTERACTIVE_MS, p99_ms(five), " ms"),
        Row("8 rows: 10 instances over 5, throughput", 1.0, ten.rps / five.rps),
        Row("8 rows: 10 instances over 5, p99", None, p99_ms(ten) / p99_ms(five)),
    ]
    for (batch, count), found in seen.items():
        name = f"{batch} rows, {count} x {100 // count} %"
        rows.append(Row(f"{name}: images", None, found.rps, " /s"))
        rows.append(Row(f"{name}: p99", None, p99_ms(found), " ms"))
    known = surface(profile(MODEL), "p99_ms")
    for batch in BATCHES:
        advice = multi_model(known, (100, 50, 25, 20, 10), v100.INTERACTIVE_MS, batch)
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
    return crowd(profile(MODEL), v100.V100, 100 // count, batch, count, _OFFERED_RPS, seconds)


def p99_ms(found: Crowd) -> float:
    """Of its batches."""
    return float(np.percentile(found.taken_ms, 99))


T4: Final = replace(GPU_KINDS["t4"], traits=GPU_KINDS["t4"].traits | {Trait.GATHER_DMA})
_MOST_ROWS: Final = 32


def table4(*, seconds: float = 2.0) -> Report:
    """Table IV: one instance with all of a T4, and several with parts, under an SLO.

    AlexNet and MobileNet as four instances of 25 %, ResNet-50 and VGG-19 as two of 50 %; inputs are
    copied in by GPU-DMA. Every model is sent 3,800 images/s; batches are the largest that end
    within the SLO. Left open: a T4's latencies (half a V100's SMs, by the TensorRT logs and by
    D-STACK's Table 6) and AlexNet's SLO (MobileNet's). Multi-Model's advice and batches of one row
    are beside it.
    """
    rows: list[Row] = []
    for source, made in (("TensorRT logs", v100.t4), ("PyTorch", pytorch)):
        for model in v100.MODELS:
            profile, slo_ms = made(model), v100.TABLE_4_SLOS_MS[model]
            count, share_pct = v100.ADVISED[model]
            single, _ = served(profile, 1, 100, seconds)
            many, p99_ms = served(profile, count, share_pct, seconds)
            rowwise, _ = served(profile, count, share_pct, seconds, 1)
            alone, _ = served(profile, 1, 100, seconds, 1)
            name = f"{source}, {model}"
            rows += [
                Row(
                    f"{name}: {count} x {share_pct} % over 1 x 100 %",
                    v100.INSTANCES_GAIN,
                    many / single,
                ),
                Row(f"{name}: 1 x 100 %, images", None, single, " /s"),
                Row(f"{name}: {count} x {share_pct} %, images", None, many, " /s"),
                Row(f"{name}: p99 of them, SLO {slo_ms:g} ms", None, p99_ms, " ms"),
                Row(f"{name}: the same gain, one row a batch", None, rowwise / alone),
            ]
            known = surface(profile, "median_ms")
            advice = multi_model(known, (100, 50, 25), slo_ms, _MOST_ROWS, v100.TABLE_4_RPS)
            if advice:
                what = f"{name}: Multi-Model here, {advice.count} x {advice.share_pct} %"
                rows.append(Row(what, None, advice.rows_per_s, " /s"))
    return Report(rows)


def physics() -> Physics:
    """A T4's link, and nothing to wait for before partitions stand."""
    transfers = {model: Transfer(v100.INPUT_BYTES, v100.OUTPUT_BYTES) for model in v100.MODELS}
    return replace(physics_of(T4, transfers), costs=MECHANISMS["uncut"], jitter=True)


def pytorch(model: str) -> Profile:
    """D-STACK's Table 6 on half the SMs: a share of a T4 is half as large a share of a V100."""
    one = TABLE_6[model]
    whole = shaped(model, one.knee_pct, one.run_ms, steep=0.0)
    points: dict[tuple[int, int], LatencyPoint] = {}
    for batch in {batch for batch, _ in whole.points}:
        curve = {s: point.median_ms for (b, s), point in whole.points.items() if b == batch}
        for share in T4.shares_pct:
            ms = v100.at(curve, share / 2)
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return replace(whole, gpu_kind="t4", points=points)


def served(
    profile: Profile, count: int, share_pct: int, seconds: float, most: int = _MOST_ROWS
) -> tuple[float, float]:
    """Images/s of so many instances with batches up to ``most``, and their batches' p99 in ms."""
    model = profile.model
    record = running.kept_busy(
        running.instances(model, share_pct, most, count),
        {model: profile},
        running.Adaptive(v100.TABLE_4_SLOS_MS[model]),
        physics(),
        T4,
        {model: v100.TABLE_4_RPS},
        seconds,
    )
    taken = running.latencies_ms(record, model)
    return running.throughput_rps(record, model), float(taken[int(0.99 * (len(taken) - 1))])
