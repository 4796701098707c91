"""Table IV: one instance with all of a T4, and several with parts, under an SLO.

AlexNet and MobileNet as four instances of 25 %, ResNet-50 and VGG-19 as two of 50 %, which is what
Multi-Model advised; inputs are copied in by GPU-DMA. Every model is sent 3,800 images/s; batches
are the largest that end within the SLO. The text says "nearly 2x" for all.

Left open: a T4's latencies. It is taken for half a V100, 40 of 80 SMs. Twice: with the published
TensorRT logs, and with PyTorch's latencies as D-STACK's Table 6 and equations have them. AlexNet's
SLO is not in the text; MobileNet's 20 ms are taken. What Multi-Model advises here is beside it.

Not all comes out, so it is looked at where instances gain most: with batches of one row, which use
the smallest part of the GPU.
"""

from dataclasses import replace
from typing import Final

from bench.harness import Report, Row, bars, main
from bench.papers.dstack.published import TABLE_6
from bench.papers.dstack.v100 import profile as shaped
from bench.papers.primitives import published as paper
from bench.papers.primitives import running
from bench.papers.primitives.instances import multi_model
from bench.papers.primitives.v100 import INPUT_BYTES, MODELS, OUTPUT_BYTES, at, t4
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Trait
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.boards import physics_of
from interlace.device.simulated.physics import MECHANISMS, Physics, Transfer
from interlace.perf.latency import surface

T4: Final = replace(GPU_KINDS["t4"], traits=GPU_KINDS["t4"].traits | {Trait.GATHER_DMA})
_MOST_ROWS: Final = 32


def table4(*, seconds: float = 2.0) -> Report:
    """Throughput of several instances over one."""
    rows: list[Row] = []
    gains: dict[str, list[float]] = {}
    for source, made in (("TensorRT logs", t4), ("PyTorch", pytorch)):
        found = gains[source] = []
        for model in MODELS:
            profile, slo_ms = made(model), paper.TABLE_4_SLOS_MS[model]
            count, share_pct = paper.ADVISED[model]
            single, _ = served(profile, 1, 100, seconds)
            many, p99_ms = served(profile, count, share_pct, seconds)
            rowwise, _ = served(profile, count, share_pct, seconds, 1)
            alone, _ = served(profile, 1, 100, seconds, 1)
            found.append(many / single)
            name = f"{source}, {model}"
            rows += [
                Row(
                    f"{name}: {count} x {share_pct} % over 1 x 100 %",
                    paper.INSTANCES_GAIN,
                    found[-1],
                ),
                Row(f"{name}: 1 x 100 %, images", None, single, " /s"),
                Row(f"{name}: {count} x {share_pct} %, images", None, many, " /s"),
                Row(f"{name}: p99 of them, SLO {slo_ms:g} ms", None, p99_ms, " ms"),
                Row(f"{name}: the same gain, one row a batch", None, rowwise / alone),
            ]
            known = surface(profile, "median_ms")
            advice = multi_model(known, (100, 50, 25), slo_ms, _MOST_ROWS, paper.TABLE_4_RPS)
            if advice:
                what = f"{name}: Multi-Model here, {advice.count} x {advice.share_pct} %"
                rows.append(Row(what, None, advice.rows_per_s, " /s"))
    drawn = bars(MODELS, gains, "throughput over one instance", level=paper.INSTANCES_GAIN)
    return Report(rows, drawn, (6.0, 3.0))


def physics() -> Physics:
    """A T4's link, and nothing to wait for before partitions stand."""
    transfers = {model: Transfer(INPUT_BYTES, OUTPUT_BYTES) for model in MODELS}
    return replace(physics_of(T4, transfers), costs=MECHANISMS["uncut"], jitter=True)


def pytorch(model: str) -> Profile:
    """D-STACK's Table 6 on half the SMs: a share of a T4 is half as large a share of a V100."""
    one = TABLE_6[model]
    whole = shaped(model, one.knee_pct, one.run_ms, steep=0.0)
    points: dict[tuple[int, int], LatencyPoint] = {}
    for batch in {batch for batch, _ in whole.points}:
        curve = {s: point.median_ms for (b, s), point in whole.points.items() if b == batch}
        for share in T4.shares_pct:
            ms = at(curve, share / 2)
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
        running.Adaptive(paper.TABLE_4_SLOS_MS[model]),
        physics(),
        T4,
        {model: paper.TABLE_4_RPS},
        seconds,
    )
    taken = running.latencies_ms(record, model)
    return running.throughput_rps(record, model), float(taken[int(0.99 * (len(taken) - 1))])


if __name__ == "__main__":
    main(table4)
