"""Cold starts that nothing else disturbs: Figures 11 and 12, Tables 3 and 4."""

from collections.abc import Sequence

from bench.harness import Report, Row, bars, each
from bench.papers.deepplan import v100
from interlace.core.loading import HostLinks, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import executes_ms
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.deepplan import initial_choice


def figure11() -> Report:
    """Figure 11: one cold request of eight models, by five ways of loading, and by ours.

    Over Baseline, which copies the model and then runs it. The figure's bars have no numbers;
    printed are three speedups of PT + DHA over PipeSwitch, and all five times of ResNet-50 in the
    repository's README. Left open: the layers' times (`bench/papers/deepplan/v100.py` says how they
    are made). PT, PT + DHA and ours have a second GPU's link; ours on one link is a row of its own.
    """
    times = {model: cold_times(model) for model in v100.MODELS}
    over = {model: one["pipeswitch"] / one["deepplan"] for model, one in times.items()}
    rows = [
        *each("ResNet-50, {}", times["resnet50"], " ms", v100.RESNET50_MS),
        *each("PT + DHA over PipeSwitch, {}", over, "", v100.SPEEDUPS),
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
    return Report(rows, bars(v100.MODELS, series, "speedup over Baseline"), (9.0, 3.0))


def cold_times(model: str) -> dict[str, float]:
    """ms of one cold row by every way."""
    found = v100.layers(model)
    times = {name: v100.cold_ms(name, found) for name in COLD_POLICIES}
    return {**times, "interlace, one link": v100.cold_ms("interlace", found, HostLinks())}


def _least_gain(times: dict[str, dict[str, float]]) -> float:
    return min(
        one["pipeswitch"] / one["deepplan-dha"] for m, one in times.items() if "resnet" not in m
    )


BATCHED_MODELS = ("resnet50", "bert_base", "roberta_large", "gpt2_medium")
_BATCHES = (1, 2, 4, 8)
_BATCHED_WAYS = ("pipeswitch", "deepplan")


def figure12() -> Report:
    """Figure 12: cold batches of 1 to 8 rows, their throughput over Baseline's at one row.

    Printed: for ResNet-50 PT + DHA is 1.12 to 1.26 times PipeSwitch at every batch; for the
    transformers the difference becomes narrow. A larger batch runs longer and reads more of the
    host.
    """
    rows: list[Row] = []
    for model in BATCHED_MODELS:
        times = {
            way: [v100.cold_ms(way, v100.layers(model, batch)) for batch in _BATCHES]
            for way in _BATCHED_WAYS
        }
        gains = [p / d for p, d in zip(times["pipeswitch"], times["deepplan"], strict=True)]
        for batch, gain in zip(_BATCHES, gains, strict=True):
            rows.append(Row(f"{model}, {batch} rows: PT + DHA over PipeSwitch", None, gain))
        if model == "resnet50":
            rows.append(Row("ResNet-50: least gain", 1.12, min(gains)))
            rows.append(Row("ResNet-50: largest gain", 1.26, max(gains)))
    return Report(rows)


def table3() -> Report:
    """Table 3, whole: which layers eight plans load and which they leave on the host.

    The decisions of the published plans, initial and DeepPlan (DHA), against those of the same two
    rules on layer times that are shaped after the paper (`v100`). Layers
    without weights are not counted. The rules are the authors' to the last tie; what differs comes
    from the times, which were never published.
    """
    rows: list[Row] = []
    for model in v100.MODELS:
        initial, final, count = agreeing(model)
        what = f"{model}, {count} layers"
        rows.append(Row(f"{what}: initial", 100.0, 100 * initial / count, " %"))
        rows.append(Row(f"{what}: DeepPlan (DHA)", 100.0, 100 * final / count, " %"))
    return Report(rows)


def agreeing(model: str) -> tuple[int, int, int]:
    """Decisions as published: initial, planned; and layers with weights."""
    found = v100.layers(model)
    first = initial_choice(found)
    steps = v100.planned("deepplan-dha", found, HostLinks())
    weighty = [index for index, one in enumerate(v100.plans()[model]) if one.nbytes]
    published = v100.plans()[model]
    same_first = sum(first[index] == published[index].initial for index in weighty)
    same_planned = sum(
        (steps[index].via is WeightPath.HOST) == published[index].planned for index in weighty
    )
    return same_first, same_planned, len(weighty)


def table4() -> Report:
    """Table 4: cold starts by PipeSwitch, by PT + DHA alone, and by PT + DHA on two GPUs at once.

    At once, each link carries the first partition of its own model, and then, as in the queue that
    the released engine has for it, the second one of the other's. The GPUs are on different
    switches.
    """
    pipeswitch = {model: v100.cold_ms("pipeswitch", v100.layers(model)) for model in v100.MODELS}
    alone = {model: v100.cold_ms("deepplan", v100.layers(model)) for model in v100.MODELS}
    both = {model: two_at_once_ms(v100.layers(model)) for model in v100.MODELS}
    rows = [
        *each(
            "PipeSwitch, {}",
            pipeswitch,
            " ms",
            {m: v100.TABLE_4[m].pipeswitch_ms for m in v100.MODELS},
        ),
        *each("PT + DHA, {}", alone, " ms", {m: v100.TABLE_4[m].alone_ms for m in v100.MODELS}),
        *each(
            "PT + DHA, two at once, {}",
            both,
            " ms",
            {m: v100.TABLE_4[m].both_ms for m in v100.MODELS},
        ),
    ]
    series = {
        "PipeSwitch": list(pipeswitch.values()),
        "PT + DHA": list(alone.values()),
        "two at once": list(both.values()),
    }
    return Report(rows, bars(v100.MODELS, series, "ms"), (8.0, 3.0))


def two_at_once_ms(found: Sequence[LayerProfile]) -> float:
    """PT + DHA of the same model on two GPUs that begin together."""
    steps = v100.planned("deepplan", found, v100.V100.two_links)
    pairs = list(zip(v100.waiting(found, steps), steps, strict=True))
    own_ms = sum(one.copy_ms for one, step in pairs if step.via is WeightPath.COPY)
    link_ms = {WeightPath.COPY: 0.0, WeightPath.PEER: own_ms}
    passed_ms = end_ms = 0.0
    for one, step in pairs:
        there_ms = 0.0
        if step.via in link_ms:
            link_ms[step.via] += one.copy_ms
            there_ms = link_ms[step.via]
        if step.via is WeightPath.PEER:
            there_ms = max(passed_ms, there_ms) + one.weights_bytes / v100.V100.nvlink_bytes_per_ms
            passed_ms = there_ms
        end_ms = max(end_ms, there_ms) + executes_ms(one, step.via)
    return end_ms
