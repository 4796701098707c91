"""Figure 15: three models, 252 instances, requests as functions were called in Azure's cloud.

BERT-Base, RoBERTa-Base and GPT-2 (384 tokens) as 4 : 4 : 1, 150 requests/s on average. Published:
DHA and PT + DHA have 98 to 99 % within 100 ms, PipeSwitch 81 to 98 %. Their trace is a day of tens
of thousands of functions; public here is a sample of 500, which is played as it is and as a day
drawn from it (docs/workloads.md). Instances of the models are dealt in turn; the first
quarter fills the memory and is not counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from bench.cold.azure import DAY, TRACE
from bench.harness import Report, Row, main
from bench.papers.deepplan.machine import PART_OF_GPT2, SLO_MS, WAYS, served
from interlace.sim.arrivals import Workload, merge_arrivals
from interlace.sim.workload.traces import TraceFiles

_INSTANCES: Final = 252
_MODELS: Final = (("bert_base",) * 4) + (("roberta_base",) * 4) + ("gpt2",)
_PUBLISHED: Final = {"deepplan-dha": 98.5, "deepplan": 98.5, "pipeswitch": 89.5}
_WARM_PART: Final = 0.25


def figure15(
    *,
    trace: Annotated[str, "calls by function and minute"] = TRACE,
    rate_rps: Annotated[float, "on average"] = 150.0,
    minutes: Annotated[int, "played"] = 4,
    ways: Annotated[str, "answers to cold starts"] = ",".join(WAYS),
) -> Report:
    """Goodput, p99 and cold requests, by trace and way of loading."""
    models = [_MODELS[number % len(_MODELS)] for number in range(_INSTANCES)]
    names = [f"{model}-{number:03}" for number, model in enumerate(models)]
    parts = [PART_OF_GPT2 if model == "gpt2" else 1.0 for model in models]
    rows: list[Row] = []
    files = TraceFiles(Path())
    for words, skip, drawn in (("sample", 1, None), ("day", 0, DAY)):
        workloads: dict[str, Workload] = {
            name: replace(one, scale=one.scale * rate_rps)
            for name, one in zip(names, files.folded(trace, len(names), skip, drawn), strict=True)
        }
        arrivals = merge_arrivals(workloads, minutes * 60.0, 0)
        for way in ways.split(","):
            found = served(way, models, arrivals, _WARM_PART, parts)
            published = _PUBLISHED.get(way) if drawn else None
            good = 100 * found.within(SLO_MS)
            rows += [
                Row(f"{words}, {way}: within 100 ms", published, good, " %"),
                Row(f"{words}, {way}: p99", None, found.p99_ms, " ms"),
                Row(f"{words}, {way}: cold", None, 100 * found.cold_part, " %"),
            ]
    return Report(rows)


if __name__ == "__main__":
    main(figure15)
