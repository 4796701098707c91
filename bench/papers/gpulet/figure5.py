"""Figure 5: SLO-preserving throughput of pairs of models on two GPUs, by how the GPUs are cut.

Temporal sharing (no cut), greedy best-fit, and "static ideal": the one cut of both GPUs that is
best over all pairs. Normalised to best-fit. Left open: the mix of a pair (equal rates are taken),
whether throughput was scheduled or measured (scheduled is taken), and the latencies (shaped after
Table 4 and Figure 3).
"""

from collections.abc import Sequence
from dataclasses import replace

from bench.harness import Report, Row, bars, each, main
from bench.planning.gpulet_profiles import MODELS, profiles
from bench.planning.highest import largest_rps
from bench.planning.schedulers import GPU, serves
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.policy.base import Planner
from interlace.policy.planners.bestfit import bestfit
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.nexus import Nexus

PAIRS = (("ssd", "be"), ("res", "vgg"), ("goo", "mob"), ("nas", "den"))
#: Section 3.3: best-fit over temporal sharing, and static ideal over best-fit, on average.
BEST_FIT_GAIN, IDEAL_GAIN = 1.51, 1.23
_STEPS = 300


def figure5() -> Report:
    """Pairs of models under every cut."""
    whole = [highest(Nexus(), pair, GPU) for pair in PAIRS]
    greedy = [highest(bestfit, pair, GPU) for pair in PAIRS]
    cuts = {
        layout: [highest(Ideal(_STEPS), pair, replace(GPU, layouts=(layout,))) for pair in PAIRS]
        for layout in GPU.layouts
    }
    best = max(cuts, key=lambda layout: _mean(cuts[layout], greedy))
    names = ["+".join(pair) for pair in PAIRS]
    over_whole = [g / w for g, w in zip(greedy, whole, strict=True)]
    over_greedy = [c / g for c, g in zip(cuts[best], greedy, strict=True)]
    rows = [
        Row("best-fit / temporal, mean", BEST_FIT_GAIN, _mean(greedy, whole)),
        Row("static ideal / best-fit, mean", IDEAL_GAIN, _mean(cuts[best], greedy)),
    ]
    gains = {"best-fit / temporal": over_whole, "static ideal / best-fit": over_greedy}
    for what, ones in gains.items():
        rows += each(f"{what}, {{}}", dict(zip(names, ones, strict=True)))
    series = {
        "temporal": [w / g for w, g in zip(whole, greedy, strict=True)],
        "best-fit": [1.0] * len(PAIRS),
        f"static ideal {best}": over_greedy,
    }
    drawn = bars(names, series, "throughput / best-fit")
    return Report(rows, drawn, (6.0, 3.0), notes=f"the best static cut is {best}")


def highest(planner: Planner, pair: Sequence[str], gpu: Gpu) -> float:
    """The largest rate of both models that two GPUs serve, requests/s of each."""
    there = {name: profiles()[name] for name in pair}

    def kept(rate_rps: float) -> bool:
        demand = [Demand(name, rate_rps, MODELS[name][0]) for name in pair]
        return serves(planner, demand, 2, there, gpu)

    return largest_rps(kept, 1.01)


def _mean(values: Sequence[float], over: Sequence[float]) -> float:
    return sum(a / b for a, b in zip(values, over, strict=True)) / len(values)


if __name__ == "__main__":
    main(figure5)
