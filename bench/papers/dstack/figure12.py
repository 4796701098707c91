"""Figure 12: four T4s, each with a model of its own, with all four in turns, or under D-STACK.

Left open: knees and latencies on a T4 (Figure 3 shows some as curves). Knees are those of the
primitives paper's section VI-B, for batches of 4 on a T4: 25, 25, 50 and 50 %. A batch of 16 takes
twice the V100's time (half its SMs), and SLOs are twice Table 6's.
3,800 requests/s are offered, all that the primitives paper's link brings to its T4s, in inverse
proportion to the SLOs as in section 7. Throughput is what was answered, in time or late. A
scheduler's T4s share the requests; exclusive models run in batches as they come.
"""

from collections.abc import Mapping

from bench.harness import Report, Row, bars, each, main
from bench.papers.dstack.published import BATCH, CLUSTER_GAIN, TABLE_6
from bench.papers.dstack.trial import Case, Figures, run
from bench.papers.dstack.v100 import profile
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Partition, Plan, Slot

MODELS = ("mobilenet", "alexnet", "resnet50", "vgg19")
SCHEMES = ("exclusive", "temporal", "dstack", "interlace")
KNEES_PCT = {"mobilenet": 25, "alexnet": 25, "resnet50": 50, "vgg19": 50}
_SLOWER = 2.0
_OFFERED_RPS = 3_800.0


def figure12(*, seconds: float = 4.0) -> Report:
    """Four T4s under each scheme."""
    found = {scheme: served(scheme, seconds) for scheme in SCHEMES}
    series = {name: [one.answered_rps[m] for m in MODELS] for name, one in found.items()}
    return Report(_compared(found), bars(MODELS, series, "images/s"), (6.0, 3.0))


def cluster() -> Case:
    """Four T4s and all that the link brings."""
    known = {m: profile(m, KNEES_PCT[m], TABLE_6[m].run_ms * _SLOWER, kind="t4") for m in MODELS}
    slos = {m: TABLE_6[m].slo_ms * _SLOWER for m in MODELS}
    whole = sum(1.0 / slo_ms for slo_ms in slos.values())
    rates = {m: _OFFERED_RPS / slos[m] / whole for m in MODELS}
    return Case(rates, known, KNEES_PCT, slos, uniform_fleet(GPU_KINDS["t4"], 4))


def exclusive(case: Case) -> Plan:
    """A T4 for each model."""
    pairs = zip(case.gpus.gpus, MODELS, strict=True)
    slots = ((gpu.id, Slot(m, BATCH, case.rates_rps[m])) for gpu, m in pairs)
    return Plan(tuple(Partition(f"{gpu}:0", gpu, 100, (slot,)) for gpu, slot in slots))


def served(scheme: str, seconds: float) -> Figures:
    """One run of a scheme."""
    case = cluster()
    alone = scheme == "exclusive"
    return run(
        "triton" if alone else scheme, case, seconds, plan=exclusive(case) if alone else None
    )


def _compared(found: Mapping[str, Figures]) -> list[Row]:
    alone, turns, ours = (found[n].total_rps for n in ("exclusive", "temporal", "dstack"))
    rows = [
        Row("dstack / temporal", CLUSTER_GAIN, ours / turns),
        Row("temporal / exclusive (about)", 1.0, turns / alone),
        Row("dstack / exclusive", None, ours / alone),
    ]
    for name, one in found.items():
        rows += each(f"{name}: {{}}", one.answered_rps, "/s")
        rows.append(Row(f"{name}: missed", None, 100 * one.missed_of_all, " %"))
    return rows


if __name__ == "__main__":
    main(figure12)
