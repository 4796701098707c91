"""Figure 11: one cold request of eight models, by five ways of loading, and by ours.

Over Baseline, which copies the model and then runs it. The figure's bars have no numbers; printed
are three speedups of PT + DHA over PipeSwitch, and all five times of ResNet-50 in the repository's
README. Left open: the layers' times (`bench/papers/deepplan/v100.py` says how they are made). PT,
PT + DHA and ours have a second GPU's link; ours on one link is a row of its own.
"""

from bench.harness import Report, Row, bars, each, main
from bench.papers.deepplan import published as paper
from bench.papers.deepplan.v100 import cold_ms, layers
from interlace.core.loading import HostLinks
from interlace.policy.cold_starts.catalog import COLD_POLICIES


def figure11() -> Report:
    """All models by all ways."""
    times = {model: cold_times(model) for model in paper.MODELS}
    over = {model: one["pipeswitch"] / one["deepplan"] for model, one in times.items()}
    rows = [
        *each("ResNet-50, {}", times["resnet50"], " ms", paper.RESNET50_MS),
        *each("PT + DHA over PipeSwitch, {}", over, "", paper.SPEEDUPS),
        *each(
            "ours over PT + DHA, {}", {m: t["deepplan"] / t["interlace"] for m, t in times.items()}
        ),
        *each(
            "ours over DHA, one link, {}",
            {m: t["deepplan-dha"] / t["interlace, one link"] for m, t in times.items()},
        ),
        Row("DHA over PipeSwitch, transformers, least", 1.10, _least_gain(times)),
    ]
    ways = [name for name in COLD_POLICIES if name != "copy"]
    series = {way: [t["copy"] / t[way] for t in times.values()] for way in ways}
    return Report(rows, bars(paper.MODELS, series, "speedup over Baseline"), (9.0, 3.0))


def cold_times(model: str) -> dict[str, float]:
    """ms of one cold row by every way."""
    found = layers(model)
    times = {name: cold_ms(name, found) for name in COLD_POLICIES}
    return {**times, "interlace, one link": cold_ms("interlace", found, HostLinks())}


def _least_gain(times: dict[str, dict[str, float]]) -> float:
    return min(
        one["pipeswitch"] / one["deepplan-dha"] for m, one in times.items() if "resnet" not in m
    )


if __name__ == "__main__":
    main(figure11)
