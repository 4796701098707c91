"""Figure 13: BERT-Base at 100 requests/s on four V100, by how many instances share them.

p99, the part within 100 ms, and the part that is cold, of 1,000 requests after 2,000 that warm the
server, Poisson arrivals, instances drawn alike. Our engine with each answer's row serves on the
paper's machine (`machine.py` beside this). Printed: PipeSwitch's p99 rises at 120
instances, DHA's is stable until 160, PT + DHA serves 180 within 100 ms, with 1.84 times
PipeSwitch's goodput; at 120 PipeSwitch's p99 is 94 ms; PT + DHA is within 35 ms at 140.
"""

from typing import Annotated, Final, NamedTuple

from bench.cold.playing import poisson
from bench.harness import Report, Row, curves, main, panels
from bench.papers.deepplan.machine import SLO_MS, WAYS, served
from bench.papers.deepplan.one_at_a_time import good_part

_COUNTS: Final = tuple(range(20, 201, 20))
#: The part of the requests that warms the server.
_WARM_PART: Final = 2 / 3


class ServerFigures(NamedTuple):
    """Of one run: p99 in ms, and the parts within 100 ms and cold."""

    p99_ms: float
    good: float
    cold: float


def figure13(
    *,
    requests: Annotated[int, "measured, of each run"] = 1000,
    ways: Annotated[str, "answers to cold starts; the paper's three at least"] = ",".join(WAYS),
) -> Report:
    """p99, goodput and cold starts by instances."""
    found = {
        way: {count: run("bert_base", way, count, 100.0, requests) for count in _COUNTS}
        for way in ways.split(",")
    }
    most = {way: most_within(figures) for way, figures in found.items()}
    gain = found["deepplan"][180].good / found["pipeswitch"][180].good
    rows = [
        Row("instances within 100 ms at p99, PipeSwitch", 120, most["pipeswitch"]),
        Row("instances within 100 ms at p99, DHA", 160, most["deepplan-dha"]),
        Row("instances within 100 ms at p99, PT + DHA", 180, most["deepplan"]),
        *(
            Row("instances within 100 ms at p99, ours", None, most[way])
            for way in most
            if way == "interlace"
        ),
        Row("PipeSwitch, 120 instances: p99", 94.0, found["pipeswitch"][120].p99_ms, " ms"),
        Row("PT + DHA, 140 instances: p99", 35.0, found["deepplan"][140].p99_ms, " ms"),
        Row("180 instances: goodput of PT + DHA over PipeSwitch", 1.84, gain),
        *(
            Row(f"the same, one request a GPU at a time{words}", 1.84, one_at_a_time_gain(passing))
            for words, passing in (("", False), (", warm ones pass", True))
        ),
        Row("180 instances: cold, PipeSwitch", None, 100 * found["pipeswitch"][180].cold, " %"),
        Row("180 instances: cold, PT + DHA", None, 100 * found["deepplan"][180].cold, " %"),
    ]
    lines = {
        what: {
            way: ([float(count) for count in one], [figures[index] for figures in one.values()])
            for way, one in found.items()
        }
        for index, what in enumerate(("p99 ms", "within 100 ms", "cold"))
    }
    drawn = panels(*(curves(one, xlabel="instances", ylabel=what) for what, one in lines.items()))
    return Report(rows, drawn, (9.0, 3.0))


def run(
    model: str, way: str, instances: int, rate_rps: float, requests: int, part: float = 1.0
) -> ServerFigures:
    """One run; twice as many requests come first. Of a model's tokens it executes a ``part``."""
    names = [f"{model}-{number:03}" for number in range(instances)]
    rates = dict.fromkeys(names, rate_rps / instances)
    found = served(
        way,
        [model] * instances,
        poisson(rates, 3 * requests / rate_rps, 0),
        _WARM_PART,
        [part] * instances,
    )
    return ServerFigures(found.p99_ms, found.within(SLO_MS), found.cold_part)


def one_at_a_time_gain(passing: bool) -> float:
    """Goodput of PT + DHA over PipeSwitch at 180 instances, in ``one_at_a_time``'s server."""
    slow, quick = (
        good_part("bert_base", way, 180, 100.0, passing) for way in ("pipeswitch", "deepplan")
    )
    return quick / slow


def most_within(figures: dict[int, ServerFigures]) -> int:
    """The most instances up to which every p99 is within the SLO."""
    most = 0
    for count, one in figures.items():
        if one.p99_ms > SLO_MS:
            break
        most = count
    return most


if __name__ == "__main__":
    main(figure13)
