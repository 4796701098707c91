"""Figure 14: p99 of BERT-Large at 30 requests/s and of GPT-2 at 90, by instances, on four V100.

As Figure 13; GPT-2 with 384 tokens, as in Figure 15: with 1,024 executions alone keep the GPUs busy
for 74 % of the time, and every way waits for those. The bars have no numbers; printed is that
DeepPlan's tail is far below PipeSwitch's, and that DHA and PT + DHA do not differ notably on GPT-2.
"""

from typing import Annotated, Final

from bench.harness import Report, Row, curves, main, panels
from bench.papers.deepplan.figure13 import run
from bench.papers.deepplan.machine import PART_OF_GPT2, WAYS

#: Model, requests/s, part of its tokens, numbers of instances around what fits the memory.
_CASES: Final = (
    ("bert_large", 30.0, 1.0, (24, 32, 40, 48, 56)),
    ("gpt2", 90.0, PART_OF_GPT2, (80, 100, 120, 140, 160)),
)


def figure14(
    *,
    requests: Annotated[int, "measured, of each run"] = 1000,
    ways: Annotated[str, "answers to cold starts"] = ",".join(WAYS),
) -> Report:
    """Both models by every way."""
    rows: list[Row] = []
    drawn = []
    for model, rate_rps, part, counts in _CASES:
        found = {
            way: [run(model, way, count, rate_rps, requests, part).p99_ms for count in counts]
            for way in ways.split(",")
        }
        rows += [
            Row(f"{model}, {count} instances: p99, {way}", None, p99_ms, " ms")
            for way, ones in found.items()
            for count, p99_ms in zip(counts, ones, strict=True)
        ]
        lines = {way: ([float(count) for count in counts], ones) for way, ones in found.items()}
        drawn.append(curves(lines, xlabel="instances", ylabel=f"{model}: p99 ms"))
    return Report(rows, panels(*drawn), (7.0, 3.0))


if __name__ == "__main__":
    main(figure14)
