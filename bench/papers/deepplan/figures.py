"""Cold starts that nothing else disturbs: Figures 2, 5, 6, 11, 12 and 16, Tables 3 and 4."""

from collections.abc import Sequence

from bench.harness import Report, Row, bars, curves, each
from bench.papers.deepplan.v100 import (
    A5000,
    MODELS,
    RESNET50_MS,
    SPEEDUPS,
    STALLED_BERT,
    STALLED_OTHERS,
    TABLE_1,
    TABLE_2,
    TABLE_4,
    V100,
    LinkFlow,
    arrivals_ms,
    cold_ms,
    layers,
    lines_read,
    planned,
    plans,
    waiting,
    warm_ms,
)
from interlace.core.loading import HostLinks, WeightPath
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import executes_ms
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.deepplan import initial_choice, partitions


def figure2() -> Report:
    """Figure 2: what part of a cold request under PipeSwitch is stall.

    The shares' middles went into the warm times of all models but BERT-Base and ResNet-50
    (`v100`): of the others it says that the timeline gives back what went
    in.
    """
    stalled = {model: 1 - warm_ms(model) / cold_ms("pipeswitch", layers(model)) for model in MODELS}
    rows = [
        Row(
            f"stalled, {model}",
            100 * (STALLED_BERT if "bert" in model else STALLED_OTHERS),
            100 * part,
            " %",
        )
        for model, part in stalled.items()
    ]
    series = {"execution": [1 - part for part in stalled.values()], "stall": list(stalled.values())}
    return Report(rows, bars(MODELS, series, "part of the request"), (8.0, 3.0))


#: Models and kinds of Table 1's rows, and of the small convolution of the figure.
_FOUND = {"embedding": "bert_base", "convolution": "resnet50", "linear": "bert_base"}
_KINDS = {"embedding": "Embedding", "convolution": "Conv2d", "linear": "Linear"}
_SMALL = "convolution, 0.56 MB"


def figure5() -> Report:
    """Figure 5 and Table 1: layers loaded and then run, or run on the host's memory.

    Table 1's cache lines are what reading from the host was shaped after; that ours are the same
    for all six layers, and who wins in each panel, is what can be compared: embeddings on the host,
    small and medium convolutions alike, large ones and linear layers loaded.
    """
    rows: list[Row] = []
    ways: dict[str, list[float]] = {"load": [], "run": [], "direct host access": []}
    names = [*TABLE_1, _SMALL]
    for name in names:
        what, _, size = name.partition(", ")
        model, index = _layer(what, float(size.removesuffix(" MB")))
        one = layers(model)[index]
        if name in TABLE_1:
            rows.append(
                Row(f"{name}: cache lines read", TABLE_1[name][2], lines_read(model)[index])
            )
        rows.append(
            Row(f"{name}: host / load and run", None, one.run_host_ms / (one.copy_ms + one.run_ms))
        )
        for way, value in zip(ways, (one.copy_ms, one.run_ms, one.run_host_ms), strict=True):
            ways[way].append(value)
    return Report(rows, bars(names, ways, "ms"), (9.0, 3.0))


def _layer(what: str, size_mb: float) -> tuple[str, int]:
    """The model and the place of its layer of that kind that is nearest in size."""
    model = _FOUND[what]
    there = [i for i, one in enumerate(plans()[model]) if one.kind == _KINDS[what]]
    return model, min(there, key=lambda i: abs(plans()[model][i].nbytes / (1 << 20) - size_mb))


_GPUS = {1: (0,), 2: (0, 2), 4: (0, 2, 1, 3)}


def figure6() -> Report:
    """Figure 6 and Table 2: loading four models over one, two and four links, and their bandwidth.

    Parallel: equal parts over the links of several GPUs, passed on over NVLink when a part is
    whole. Parallel-pipeline: each layer is passed on when it has come. Two GPUs are on different
    switches; of four, two share a switch's link. The serial bandwidths are what the link was fitted
    to, the others follow.
    """
    rows: list[Row] = []
    drawn: dict[str, list[float]] = {}
    for model, published in TABLE_2.items():
        serial_ms = loading(model, 1)[1]
        for (count, words), gb in zip(
            {1: "serial", 2: "parallel-pipeline (2)", 4: "parallel-pipeline (4)"}.items(),
            published,
            strict=True,
        ):
            bandwidth, took_ms = loading(model, count)
            rows.append(Row(f"{model}, {words}", gb, bandwidth, " GB/s"))
            drawn.setdefault(words, []).append(took_ms / serial_ms)
        plain = loading(model, 2, pipelined=False)[1]
        rows.append(Row(f"{model}, parallel (2): time, part of serial", None, plain / serial_ms))
        drawn.setdefault("parallel (2)", []).append(plain / serial_ms)
    return Report(rows, bars(list(TABLE_2), drawn, "time to load / serial"), (7.0, 3.0))


def loading(model: str, count: int, pipelined: bool = True) -> tuple[float, float]:
    """GB/s over the links that are used, on average, and ms until the last layer is there."""
    found = layers(model)
    link_of = partitions(found, [not one.weights_bytes for one in found], count)
    parts = [
        [
            one
            for one, link in zip(found, link_of, strict=True)
            if one.weights_bytes and link == part
        ]
        for part in range(count)
    ]
    flows = [
        LinkFlow(_GPUS[count][part], [one.copy_ms for one in ones])
        for part, ones in enumerate(parts)
    ]
    came = arrivals_ms(flows)
    rates = [
        sum(one.weights_bytes for one in ones) / times[-1] / 1e6
        for ones, times in zip(parts, came, strict=True)
        if times
    ]
    ends = [came[0][-1]]
    for ones, times in zip(parts[1:], came[1:], strict=True):
        passed_ms = 0.0
        for one, at_ms in zip(ones, times, strict=True):
            there_ms = at_ms if pipelined else times[-1]
            passed_ms = max(passed_ms, there_ms) + one.weights_bytes / V100.nvlink_bytes_per_ms
        ends.append(passed_ms)
    return sum(rates) / len(rates), max(ends)


def figure11() -> Report:
    """Figure 11: one cold request of eight models, by five ways of loading, and by ours.

    Over Baseline, which copies the model and then runs it. The figure's bars have no numbers;
    printed are three speedups of PT + DHA over PipeSwitch, and all five times of ResNet-50 in the
    repository's README. Left open: the layers' times (`bench/papers/deepplan/v100.py` says how they
    are made). PT, PT + DHA and ours have a second GPU's link; ours on one link is a row of its own.
    """
    times = {model: cold_times(model) for model in MODELS}
    over = {model: one["pipeswitch"] / one["deepplan"] for model, one in times.items()}
    rows = [
        *each("ResNet-50, {}", times["resnet50"], " ms", RESNET50_MS),
        *each("PT + DHA over PipeSwitch, {}", over, "", SPEEDUPS),
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
    return Report(rows, bars(MODELS, series, "speedup over Baseline"), (9.0, 3.0))


def cold_times(model: str) -> dict[str, float]:
    """ms of one cold row by every way."""
    found = layers(model)
    times = {name: cold_ms(name, found) for name in COLD_POLICIES}
    return {**times, "interlace, one link": cold_ms("interlace", found, HostLinks())}


def _least_gain(times: dict[str, dict[str, float]]) -> float:
    return min(
        one["pipeswitch"] / one["deepplan-dha"] for m, one in times.items() if "resnet" not in m
    )


BATCHED_MODELS = ("resnet50", "bert_base", "roberta_large", "gpt2_medium")
_BATCHES = (1, 2, 4, 8)
_BATCHED_WAYS = ("copy", "pipeswitch", "deepplan-dha", "deepplan", "interlace")


def figure12() -> Report:
    """Figure 12: cold batches of 1 to 8 rows, their throughput over Baseline's at one row.

    Printed: for ResNet-50 PT + DHA is 1.12 to 1.26 times PipeSwitch at every batch; for the
    transformers the difference becomes narrow. A larger batch runs longer and reads more of the
    host.
    """
    rows: list[Row] = []
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for model in BATCHED_MODELS:
        base_ms = cold_ms("copy", layers(model))
        times = {
            way: [cold_ms(way, layers(model, batch)) for batch in _BATCHES] for way in _BATCHED_WAYS
        }
        gains = [p / d for p, d in zip(times["pipeswitch"], times["deepplan"], strict=True)]
        for batch, gain in zip(_BATCHES, gains, strict=True):
            rows.append(Row(f"{model}, {batch} rows: PT + DHA over PipeSwitch", None, gain))
        if model == "resnet50":
            rows.append(Row("ResNet-50: least gain", 1.12, min(gains)))
            rows.append(Row("ResNet-50: largest gain", 1.26, max(gains)))
        for way in ("pipeswitch", "deepplan"):
            over = [
                batch * base_ms / taken_ms
                for batch, taken_ms in zip(_BATCHES, times[way], strict=True)
            ]
            lines[f"{model}, {way}"] = ([float(batch) for batch in _BATCHES], over)
    return Report(rows, curves(lines, "-o", xlabel="rows", ylabel="throughput / Baseline"))


_A5000_WAYS = ("pipeswitch", "deepplan-dha", "deepplan-pt", "deepplan", "interlace")


def figure16() -> Report:
    """Figure 16: the same on two A5000 with PCIe 4.0: the trend stays.

    The figure has no numbers. A copy takes half the bytes' time, execution what FP32 takes on this
    GPU (`v100`).
    """
    times = {
        model: {
            way: cold_ms(way, layers(model, machine=A5000), A5000.two_links)
            for way in ("copy", *_A5000_WAYS)
        }
        for model in MODELS
    }
    gains = {way: {m: one["copy"] / one[way] for m, one in times.items()} for way in _A5000_WAYS}
    rows = [line for way in _A5000_WAYS for line in each(f"{way} over Baseline, {{}}", gains[way])]
    series = {way: list(one.values()) for way, one in gains.items()}
    return Report(rows, bars(MODELS, series, "speedup over Baseline"), (9.0, 3.0))


def table3() -> Report:
    """Table 3, whole: which layers eight plans load and which they leave on the host.

    The decisions of the published plans, initial and DeepPlan (DHA), against those of the same two
    rules on layer times that are shaped after the paper (`v100`). Layers
    without weights are not counted. The rules are the authors' to the last tie; what differs comes
    from the times, which were never published.
    """
    rows: list[Row] = []
    initial, final = [], []
    for model in MODELS:
        one, other, count = agreeing(model)
        initial.append(100 * one / count)
        final.append(100 * other / count)
        rows.append(Row(f"{model}, {count} layers: initial", 100.0, initial[-1], " %"))
        rows.append(Row(f"{model}, {count} layers: DeepPlan (DHA)", 100.0, final[-1], " %"))
    series = {"initial": initial, "DeepPlan (DHA)": final}
    return Report(rows, bars(MODELS, series, "decisions as published, %"), (8.0, 3.0))


def agreeing(model: str) -> tuple[int, int, int]:
    """Decisions as published: initial, planned; and layers with weights."""
    found = layers(model)
    first = initial_choice(found)
    steps = planned("deepplan-dha", found, HostLinks())
    weighty = [index for index, one in enumerate(plans()[model]) if one.nbytes]
    published = plans()[model]
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
