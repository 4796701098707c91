"""Figure 15: three models, 252 instances, requests as functions were called in Azure's cloud.

BERT-Base, RoBERTa-Base and GPT-2 (384 tokens) as 4 : 4 : 1, 150 requests/s on average. Published:
DHA and PT + DHA have 98 to 99 % within 100 ms, PipeSwitch 81 to 98 %. The trace is a public sample
of 500 functions by minute, which stands for the whole day of tens of thousands; its largest one is
63 % of all calls and more than a GPU serves, so it is left out here. As in the released client:
by volume, folded onto the instances, counts scaled and cut to whole calls, Poisson within a minute.
Instances of the models are dealt in turn.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from bench.harness import Report, Row, curves, main, percentile
from bench.papers.deepplan.figure13 import WAYS
from bench.papers.deepplan.server import ModelWay, Request, serve, way_of

_INSTANCES: Final = 252
_RATE_RPS: Final = 150.0
_SLO_MS: Final = 100.0
_MODELS: Final = (("bert_base",) * 4) + (("roberta_base",) * 4) + ("gpt2",)
#: 384 of the 1,024 tokens that GPT-2 has elsewhere.
_PART_OF_GPT2: Final = 384 / 1024
_TRACE: Final = "../shared/data/traces/azure-functions-2019-sample500.csv"


def figure15(
    *,
    trace: Annotated[str, "calls by function and minute"] = _TRACE,
    minutes: Annotated[int, "played"] = 60,
) -> Report:
    """Goodput and p99 of the whole, by way of loading; the picture is by minute."""
    requests = calls(Path(trace), minutes)
    rows: list[Row] = []
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for way in WAYS:
        models = {model: _way(model, way) for model in set(_MODELS)}
        ways = {one: models[_MODELS[one % len(_MODELS)]] for one in range(_INSTANCES)}
        served = serve(requests, ways)
        times = [one.took_ms for one in served]
        good = 100 * sum(time <= _SLO_MS for time in times) / len(times)
        published = {"deepplan-dha": 98.5, "deepplan": 98.5, "pipeswitch": 89.5}.get(way)
        rows += [
            Row(f"{way}: within 100 ms", published, good, " %"),
            Row(f"{way}: p99", None, percentile(times, 99) or 0.0, " ms"),
            Row(f"{way}: cold", None, 100 * sum(o.cold for o in served) / len(served), " %"),
        ]
        by_minute: dict[int, list[float]] = {}
        for one in served:
            by_minute.setdefault(int(one.request.at_ms // 60_000), []).append(one.took_ms)
        lines[way] = (
            [float(minute) for minute in sorted(by_minute)],
            [percentile(by_minute[minute], 99) or 0.0 for minute in sorted(by_minute)],
        )
    return Report(rows, curves(lines, xlabel="minute", ylabel="p99 ms"), (8.0, 3.0))


def _way(model: str, way: str) -> ModelWay:
    return way_of(model, way, _PART_OF_GPT2 if model == "gpt2" else 1)


def calls(path: Path, minutes: int) -> list[Request]:
    """The trace's first minutes as requests.

    Raises:
        SystemExit: there is no such file.
    """
    if not path.exists():
        raise SystemExit(f"{path}: no such file; --trace names calls by function and minute")
    return _played(_by_instance(path, minutes), random.Random(0))


def _by_instance(path: Path, minutes: int) -> list[list[int]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    counts = sorted(([int(cell or 0) for cell in row[4:]] for row in rows), key=sum, reverse=True)
    rest = counts[1:]
    rate_rps = sum(map(sum, rest)) / (60.0 * len(rest[0]))
    found = [[0] * minutes for _ in range(_INSTANCES)]
    for number, row in enumerate(rest):
        for minute in range(minutes):
            found[number % _INSTANCES][minute] += int(row[minute] * _RATE_RPS / rate_rps)
    return found


def _played(counts: Sequence[Sequence[int]], drawn: random.Random) -> list[Request]:
    """Calls of a minute are anywhere in it, which is what Poisson arrivals of that number are."""
    requests = [
        Request(60_000.0 * (minute + drawn.random()), instance)
        for instance, row in enumerate(counts)
        for minute, count in enumerate(row)
        for _ in range(count)
    ]
    return sorted(requests)


if __name__ == "__main__":
    main(figure15)
