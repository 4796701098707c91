"""Figure 6 and Table 2: loading four models over one, two and four links, and their bandwidth.

Parallel: equal parts over the links of several GPUs, passed on over NVLink when a part is whole.
Parallel-pipeline: each layer is passed on when it has come. Two GPUs are on different switches; of
four, two share a switch's link. The serial bandwidths are what the link was fitted to, the others
follow.
"""

from bench.harness import Report, Row, bars, main
from bench.papers.deepplan.links import LinkFlow, arrivals_ms
from bench.papers.deepplan.published import TABLE_2
from bench.papers.deepplan.v100 import V100, layers
from interlace.policy.cold_starts.deepplan import partitions

_GPUS = {1: (0,), 2: (0, 2), 4: (0, 2, 1, 3)}


def figure6() -> Report:
    """Four models, by how many links they are loaded over."""
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


if __name__ == "__main__":
    main(figure6)
