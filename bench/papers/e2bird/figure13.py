"""Figure 13: latencies of 400 requests, 150 at low and 250 at high load, three systems.

The curves are only drawn; printed is by how much latencies fall, as a range over six networks. Of
these three have published latencies (Table 1). The load is high where TF-Serving's latencies are
close to the target of 200 ms, as in the paper: the rate at which the slowest of the 250 takes that
long is looked for.

Left open: the low rate (a fifth and three fifths of the high one are tried: the second gives about
the printed range), the longest wait for each network (30 ms for all), what TF-Serving does around a
batch (titan.py), and whether means or curves are compared (means of each phase).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, main
from bench.papers.e2bird.contest import Entrant, Latencies, ebird, even, latencies_ms, tf_serving
from bench.papers.e2bird.published import (
    E_OVER_N_SAVED_PCT,
    HIGH_LOAD_SAVED_PCT,
    LOW_LOAD_SAVED_PCT,
    QOS_MS,
    TABLE_1_RPS,
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
    for part, low in by_part.items():
        what = f"low load ({part:.0%}), N-Ebird saves"
        rows += _range(what, low, n_over_tf, False, LOW_LOAD_SAVED_PCT)
    rows += _range("high load, N-Ebird saves", found, n_over_tf, True, HIGH_LOAD_SAVED_PCT)
    rows += _range("high load, E-Ebird saves of N's", found, e_over_n, True, E_OVER_N_SAVED_PCT)
    for model, one in found.items():
        rows += [Row(f"{model}, {n}, slowest", None, float(s.max()), " ms") for n, s in one.items()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, seen), colour in zip(found[models[-1]].items(), COLOURS, strict=False):
            axes.plot(np.arange(len(seen)), seen, color=colour, lw=1, label=name)
        axes.axhline(QOS_MS, color="black", lw=0.8, ls=":")
        axes.set(xlabel=f"request ({models[-1]})", ylabel="latency, ms", ylim=(0, None))
        axes.legend(frameon=False, fontsize=8)

    return Report(rows, draw, (6.0, 3.0))


def times_ms(high_rps: float, low_part: float) -> list[float]:
    """The trace: arrivals at a part of the rate, then at the rate."""
    low = even(low_part * high_rps, LOW)
    return low + even(high_rps, HIGH, low[-1] + 1000.0 / high_rps)


def high_rps(model: str, entrant: Entrant) -> float:
    """The rate at which TF-Serving's slowest request comes closest to the target."""
    low, high = 0.4 * TABLE_1_RPS[model][32], 1.3 * TABLE_1_RPS[model][32]
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        slow = latencies_ms(entrant, model, times_ms(middle, LOW_PARTS[0])).max() > QOS_MS
        low, high = (low, middle) if slow else (middle, high)
    return low


def phases(model: str, low_part: float) -> dict[str, Latencies]:
    """Latency of each request under each system."""
    tf = tf_serving(model)
    trace = times_ms(high_rps(model, tf), low_part)
    entrants = {"TF-Serving": tf, "N-Ebird": ebird(model, False), "E-Ebird": ebird(model, True)}
    return {name: latencies_ms(one, model, trace) for name, one in entrants.items()}


def saved_pct(before: Latencies, after: Latencies, high: bool) -> float:
    """By how much the mean latency of a phase falls."""
    part = slice(LOW, None) if high else slice(0, LOW)
    return 100.0 * float(1.0 - after[part].mean() / before[part].mean())


def _range(
    what: str,
    found: dict[str, dict[str, Latencies]],
    pair: tuple[str, str],
    high: bool,
    published: tuple[float, float],
) -> list[Row]:
    """The least and the most that is saved over the networks."""
    saved = [saved_pct(one[pair[0]], one[pair[1]], high) for one in found.values()]
    return [
        Row(f"{what} at least", published[0], min(saved), " %"),
        Row(f"{what} at most", published[1], max(saved), " %"),
    ]


if __name__ == "__main__":
    main(figure13)
