"""Figure 2: latencies of TF-Serving's three batching policies while the load of Res152 rises.

The rate grows every 150 requests. The figure prints no numbers; its text makes five statements,
which are looked at one by one (1: it is so here, 0: it is not).

Left open: the rates (even steps from 15 % to 75 % of what one worker of 32 serves are taken), and
how many batches TF-Serving has on their way, one after the other on the GPU. Its default, a thread
for each of the machine's twelve processors, and a single thread are both tried. With one, NO_Wait
gathers large batches by itself at high load and does as well as OPT_Wait; with twelve, small ones
queue up in front of the GPU, which is what the paper describes.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, each, main
from bench.papers.e2bird.contest import BATCH_THREADS, Latencies, even, latencies_ms, tf_serving
from bench.papers.e2bird.published import OPT_WAIT_MS, QOS_MS, TABLE_1_RPS

MODEL = "res152"
PARTS = (0.15, 0.30, 0.45, 0.60, 0.75)
_EACH = 150


def figure2() -> Report:
    """The five statements, with twelve threads and with one."""
    many, single = seen(BATCH_THREADS), seen(1)
    rows: list[Row] = []
    for threads, found in ((BATCH_THREADS, many), (1, single)):
        rows += each(f"{{}}, {threads} threads", statements(found), published=1.0)
    for name, values in zip(Policies._fields, map(medians, many), strict=True):
        by_load = dict(zip(PARTS, values, strict=True))
        rows += each(f"{name}, median at {{:.0%}} load", by_load, " ms")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        places = np.arange(0, len(many.no_wait), 3)
        for name, values, colour in zip(Policies._fields, many, COLOURS, strict=False):
            axes.plot(places, values[places], color=colour, lw=1, label=f"{name}, 12 threads")
            lone = getattr(single, name)
            axes.plot(places, lone[places], color=colour, lw=0.8, ls=":", label=f"{name}, one")
        axes.axhline(QOS_MS, color="black", lw=0.8)
        axes.set(xlabel="request", ylabel="latency, ms", yscale="log")
        axes.legend(frameon=False, fontsize=7, ncols=2)

    return Report(rows, draw, (6.0, 3.0))


class Policies(NamedTuple):
    """Latencies of every request under each policy."""

    no_wait: Latencies
    opt_wait: Latencies
    static: Latencies


def times_ms() -> list[float]:
    """Arrivals: 150 at each rate."""
    times: list[float] = []
    for part in PARTS:
        start_ms = times[-1] if times else 0.0
        rate_rps = part * TABLE_1_RPS[MODEL][32]
        times += even(rate_rps, _EACH, start_ms + 1000.0 / rate_rps)
    return times


def seen(threads: int) -> Policies:
    """All three policies on the same trace."""
    trace = times_ms()
    terms = (0.0, False), (OPT_WAIT_MS, False), (OPT_WAIT_MS, True)
    policies = (tf_serving(MODEL, wait_ms, padded, threads) for wait_ms, padded in terms)
    return Policies(*(latencies_ms(one, MODEL, trace) for one in policies))


def medians(one: Latencies) -> list[float]:
    """The median latency at each load."""
    return [float(np.median(one[i * _EACH : (i + 1) * _EACH])) for i in range(len(PARTS))]


def statements(all_three: Policies) -> dict[str, bool]:
    """What the text says of the figure."""
    no_wait, opt_wait, static = map(medians, all_three)
    return {
        "NO_Wait is the fastest at the lowest load": no_wait[0] < min(opt_wait[0], static[0]),
        "NO_Wait misses 200 ms at the highest": all_three.no_wait[-_EACH:].max() > QOS_MS,
        "OPT_Wait is much faster there (by half)": opt_wait[-1] < 0.5 * no_wait[-1],
        "OPT_Wait keeps 200 ms throughout": all_three.opt_wait.max() <= QOS_MS,
        "Static is never better than OPT_Wait": all(map(float.__ge__, static, opt_wait)),
    }


if __name__ == "__main__":
    main(figure2)
