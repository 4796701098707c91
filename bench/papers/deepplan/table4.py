"""Table 4: cold starts by PipeSwitch, by PT + DHA alone, and by PT + DHA on two GPUs at once.

At once, each link carries the first partition of its own model, and then, as in the queue that
the released engine has for it, the second one of the other's. The GPUs are on different switches.
"""

from collections.abc import Sequence

from bench.harness import Report, bars, each, main
from bench.papers.deepplan.published import MODELS, TABLE_4
from bench.papers.deepplan.v100 import V100, cold_ms, layers, planned, waiting
from interlace.core.loading import WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import executes_ms


def table4() -> Report:
    """Every model three times."""
    pipeswitch = {model: cold_ms("pipeswitch", layers(model)) for model in MODELS}
    alone = {model: cold_ms("deepplan", layers(model)) for model in MODELS}
    both = {model: two_at_once_ms(layers(model)) for model in MODELS}
    rows = [
        *each("PipeSwitch, {}", pipeswitch, " ms", {m: TABLE_4[m].pipeswitch_ms for m in MODELS}),
        *each("PT + DHA, {}", alone, " ms", {m: TABLE_4[m].alone_ms for m in MODELS}),
        *each("PT + DHA, two at once, {}", both, " ms", {m: TABLE_4[m].both_ms for m in MODELS}),
    ]
    series = {
        "PipeSwitch": list(pipeswitch.values()),
        "PT + DHA": list(alone.values()),
        "two at once": list(both.values()),
    }
    return Report(rows, bars(MODELS, series, "ms"), (8.0, 3.0))


def two_at_once_ms(found: Sequence[LayerProfile]) -> float:
    """PT + DHA of the same model on two GPUs that begin together."""
    steps = planned("deepplan", found, V100.two_links)
    pairs = list(zip(waiting(found, steps), steps, strict=True))
    own_ms = sum(one.copy_ms for one, step in pairs if step.via is WeightPath.COPY)
    link_ms = {WeightPath.COPY: 0.0, WeightPath.PEER: own_ms}
    passed_ms = end_ms = 0.0
    for one, step in pairs:
        there_ms = 0.0
        if step.via in link_ms:
            link_ms[step.via] += one.copy_ms
            there_ms = link_ms[step.via]
        if step.via is WeightPath.PEER:
            there_ms = max(passed_ms, there_ms) + one.weights_bytes / V100.nvlink_bytes_per_ms
            passed_ms = there_ms
        end_ms = max(end_ms, there_ms) + executes_ms(one, step.via)
    return end_ms


if __name__ == "__main__":
    main(table4)
