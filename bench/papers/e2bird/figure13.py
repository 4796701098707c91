"""Figure 13: latencies of 400 requests, 150 at low and 250 at high load, three systems.

The curves are only drawn; printed is by how much latencies fall, as a range over six networks. Of
these three have published latencies (Table 1). The load is high where TF-Serving's latencies are
close to the target of 200 ms, as in the paper: the rate at which the slowest of the 250 takes that
long is looked for.

Left open: the low rate (a fifth and three fifths of the high one are tried: the second gives about
the printed range), the longest wait for each network (30 ms for all), what TF-Serving does around a
batch (titan.py), and whether means or curves are compared (means of each phase).
"""

from bench.harness import Report, Row, curves, each, highest, main
from bench.papers.e2bird import published as paper
from bench.papers.e2bird.contest import (
    Entrant,
    Latencies,
    entrants,
    latencies_ms,
    low_then_high,
    saved_pct,
)
from bench.papers.e2bird.titan import MODELS

LOW, HIGH = 150, 250
LOW_PARTS = (0.2, 0.6)


def figure13(*, models: tuple[str, ...] = MODELS) -> Report:
    """Latencies of the three systems, at two low rates."""
    by_part = {part: {model: phases(model, part) for model in models} for part in LOW_PARTS}
    found = by_part[LOW_PARTS[0]]
    rows: list[Row] = []
    n_over_tf, e_over_n = ("TF-Serving", "N-Ebird"), ("N-Ebird", "E-Ebird")
    low, high = slice(0, LOW), slice(LOW, None)
    for part, tried in by_part.items():
        what = f"low load ({part:.0%}), N-Ebird saves"
        rows += _range(what, tried, n_over_tf, low, paper.LOW_LOAD_SAVED_PCT)
    what = "high load, N-Ebird saves"
    rows += _range(what, found, n_over_tf, high, paper.HIGH_LOAD_SAVED_PCT)
    what = "high load, E-Ebird saves of N's"
    rows += _range(what, found, e_over_n, high, paper.E_OVER_N_SAVED_PCT)
    for model, one in found.items():
        slowest = {name: float(seen.max()) for name, seen in one.items()}
        rows += each(f"{model}, {{}}, slowest", slowest, " ms")
    lines = {name: (range(len(seen)), seen.tolist()) for name, seen in found[models[-1]].items()}
    label = f"request ({models[-1]})"
    drawn = curves(lines, level=paper.QOS_MS, xlabel=label, ylabel="latency, ms", ylim=(0, None))
    return Report(rows, drawn, (6.0, 3.0))


def high_rps(model: str, entrant: Entrant) -> float:
    """The rate at which TF-Serving's slowest request comes closest to the target."""

    def kept(rate_rps: float) -> bool:
        trace = low_then_high(rate_rps, LOW_PARTS[0], LOW, HIGH)
        return float(latencies_ms(entrant, model, trace).max()) <= paper.QOS_MS

    top_rps = paper.TABLE_1_RPS[model][32]
    return highest(kept, 0.4 * top_rps, 1.3 * top_rps, 1.01)


def phases(model: str, low_part: float) -> dict[str, Latencies]:
    """Latency of each request under each system."""
    systems = entrants(model)
    trace = low_then_high(high_rps(model, systems["TF-Serving"]), low_part, LOW, HIGH)
    return {name: latencies_ms(one, model, trace) for name, one in systems.items()}


def _range(
    what: str,
    found: dict[str, dict[str, Latencies]],
    pair: tuple[str, str],
    phase: slice,
    published: tuple[float, float],
) -> list[Row]:
    """The least and the most that is saved over the networks."""
    saved = [saved_pct(one[pair[0]], one[pair[1]], phase) for one in found.values()]
    return [
        Row(f"{what} at least", published[0], min(saved), " %"),
        Row(f"{what} at most", published[1], max(saved), " %"),
    ]


if __name__ == "__main__":
    main(figure13)
