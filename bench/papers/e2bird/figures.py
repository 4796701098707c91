"""Table 4 and Figures 2, 13 and 14: latency and throughput on the simulated Titan RTX."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, bars, curves, each, highest
from bench.papers.e2bird import contest, titan
from interlace.perf.latency import surface
from interlace.perf.worker_sizes import (
    Guideline,
    search,
)

_WAITING_MODEL = "res152"
PARTS = (0.15, 0.30, 0.45, 0.60, 0.75)
_EACH = 150


def figure2() -> Report:
    """Figure 2: latencies of TF-Serving's three batching policies while the load of Res152 rises.

    The text makes five statements (1: it is so here, 0: it is not). Left open: the rates (steps
    from 15 % to 75 % of what one worker of 32 serves, 150 requests each) and how many batches are
    on their way: a thread for each of twelve processors, its default, and one thread are both
    tried.
    """
    many, single = seen(contest.BATCH_THREADS), seen(1)
    rows: list[Row] = []
    for threads, found in ((contest.BATCH_THREADS, many), (1, single)):
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
        axes.axhline(titan.QOS_MS, color="black", lw=0.8)
        axes.set(xlabel="request", ylabel="latency, ms", yscale="log")
        axes.legend(frameon=False, fontsize=7, ncols=2)

    return Report(rows, draw, (6.0, 3.0))


class Policies(NamedTuple):
    """Latencies of every request under each policy."""

    no_wait: contest.Latencies
    opt_wait: contest.Latencies
    static: contest.Latencies


def times_ms() -> list[float]:
    """Arrivals: 150 at each rate."""
    times: list[float] = []
    for part in PARTS:
        start_ms = times[-1] if times else 0.0
        rate_rps = part * titan.TABLE_1_RPS[_WAITING_MODEL][32]
        times += contest.even(rate_rps, _EACH, start_ms + 1000.0 / rate_rps)
    return times


def seen(threads: int) -> Policies:
    """All three policies on the same trace."""
    trace = times_ms()
    terms = (0.0, False), (titan.OPT_WAIT_MS, False), (titan.OPT_WAIT_MS, True)
    policies = (
        contest.tf_serving(_WAITING_MODEL, wait_ms, padded, threads) for wait_ms, padded in terms
    )
    return Policies(*(contest.latencies_ms(one, _WAITING_MODEL, trace) for one in policies))


def medians(one: contest.Latencies) -> list[float]:
    """The median latency at each load."""
    return [float(np.median(one[i * _EACH : (i + 1) * _EACH])) for i in range(len(PARTS))]


def statements(all_three: Policies) -> dict[str, bool]:
    """What the text says of the figure."""
    no_wait, opt_wait, static = map(medians, all_three)
    return {
        "NO_Wait is the fastest at the lowest load": no_wait[0] < min(opt_wait[0], static[0]),
        "NO_Wait misses 200 ms at the highest": all_three.no_wait[-_EACH:].max() > titan.QOS_MS,
        "OPT_Wait is much faster there (by half)": opt_wait[-1] < 0.5 * no_wait[-1],
        "OPT_Wait keeps 200 ms throughout": all_three.opt_wait.max() <= titan.QOS_MS,
        "Static is never better than OPT_Wait": all(map(float.__ge__, static, opt_wait)),
    }


def table4() -> Report:
    """Table 4: the configurations that E-Ebird's offline phase finds for Res152, and its engine.

    The search of `interlace.perf.worker_sizes` over all configurations, on the simulated GPU's law
    of streams. The law was fitted with this table in view (`titan`): that five constants are
    enough for four searches is what is shown. The printed engine has one worker of 4, and the
    printed row of 16 wants two: the engine found here has them. Res50 and Res101, whose tables are
    not printed, are searched too.
    """
    found = {model: guideline(model) for model in titan.MODELS}
    rows = [
        Row(f"res152, {total} rows: {list(one)} as printed (1 = so)", 1.0, float(one == known))
        for (total, one), known in zip(
            found["res152"].best.items(), titan.TABLE_4.values(), strict=True
        )
    ]
    engine = found["res152"].engine
    rows.append(
        Row(f"res152, engine: workers, {list(engine)}", sum(titan.TABLE_4_ENGINE), sum(engine))
    )
    for model in ("res50", "res101"):
        for total, one in found[model].best.items():
            rows.append(Row(f"{model}, {total} rows: workers, {list(one)}", None, sum(one)))

    return Report(rows)


def guideline(model: str) -> Guideline:
    """What the offline phase finds."""
    return search(titan.STREAMS.measure(surface(titan.profile(model), "median_ms")))


LOW, HIGH = 150, 250
LOW_PARTS = (0.2, 0.6)


def figure13(*, models: tuple[str, ...] = titan.MODELS) -> Report:
    """Figure 13: latencies of 400 requests, 150 at low and 250 at high load, three systems.

    Printed is by how much latencies fall, as a range over six networks; three have published
    latencies (Table 1). The load is high where TF-Serving's slowest request takes 200 ms. Left
    open: the low rate (a fifth and three fifths of the high one), the longest wait of each network
    (30 ms), what TF-Serving does around a batch (`titan`), and what is compared (means of each
    phase).
    """
    by_part = {part: {model: phases(model, part) for model in models} for part in LOW_PARTS}
    found = by_part[LOW_PARTS[0]]
    rows: list[Row] = []
    n_over_tf, e_over_n = ("TF-Serving", "N-Ebird"), ("N-Ebird", "E-Ebird")
    low, high = slice(0, LOW), slice(LOW, None)
    for part, tried in by_part.items():
        what = f"low load ({part:.0%}), N-Ebird saves"
        rows += _range(what, tried, n_over_tf, low, titan.LOW_LOAD_SAVED_PCT)
    what = "high load, N-Ebird saves"
    rows += _range(what, found, n_over_tf, high, titan.HIGH_LOAD_SAVED_PCT)
    what = "high load, E-Ebird saves of N's"
    rows += _range(what, found, e_over_n, high, titan.E_OVER_N_SAVED_PCT)
    for model, one in found.items():
        slowest = {name: float(seen.max()) for name, seen in one.items()}
        rows += each(f"{model}, {{}}, slowest", slowest, " ms")
    lines = {name: (range(len(seen)), seen.tolist()) for name, seen in found[models[-1]].items()}
    label = f"request ({models[-1]})"
    drawn = curves(lines, level=titan.QOS_MS, xlabel=label, ylabel="latency, ms", ylim=(0, None))
    return Report(rows, drawn, (6.0, 3.0))


def high_rps(model: str, entrant: contest.Entrant) -> float:
    """The rate at which TF-Serving's slowest request comes closest to the target."""

    def kept(rate_rps: float) -> bool:
        trace = contest.low_then_high(rate_rps, LOW_PARTS[0], LOW, HIGH)
        return float(contest.latencies_ms(entrant, model, trace).max()) <= titan.QOS_MS

    top_rps = titan.TABLE_1_RPS[model][32]
    return highest(kept, 0.4 * top_rps, 1.3 * top_rps, 1.01)


def phases(model: str, low_part: float) -> dict[str, contest.Latencies]:
    """Latency of each request under each system."""
    systems = contest.entrants(model)
    trace = contest.low_then_high(high_rps(model, systems["TF-Serving"]), low_part, LOW, HIGH)
    return {name: contest.latencies_ms(one, model, trace) for name, one in systems.items()}


def _range(
    what: str,
    found: dict[str, dict[str, contest.Latencies]],
    pair: tuple[str, str],
    phase: slice,
    published: tuple[float, float],
) -> list[Row]:
    """The least and the most that is saved over the networks."""
    saved = [contest.saved_pct(one[pair[0]], one[pair[1]], phase) for one in found.values()]
    return [
        Row(f"{what} at least", published[0], min(saved), " %"),
        Row(f"{what} at most", published[1], max(saved), " %"),
    ]


#: Requests a trial, enough for a queue that grows by 2 % to miss the target.
_COUNT = 5_000


def figure14(*, models: tuple[str, ...] = titan.MODELS, count: int = _COUNT) -> Report:
    """Figure 14: the highest throughput within the QoS target, TF-Serving, N-Ebird and E-Ebird.

    The highest steady rate at which 99 % of the requests end within 200 ms, by bisection. Printed
    are mean gains over six networks; here means are over the three ResNets of Table 1. Left open:
    what TF-Serving does between batches (`titan`) and its longest wait (30 ms). The last rows say
    what Equation 1 alone would give.
    """
    found = {model: highest_by_system(model, count) for model in models}
    enhanced = gains_pct(found, "E-Ebird", "TF-Serving")
    means = {
        ("N-Ebird", "TF-Serving"): titan.N_OVER_TF_PCT,
        ("E-Ebird", "N-Ebird"): titan.E_OVER_N_PCT,
        ("E-Ebird", "TF-Serving"): titan.MEAN_GAIN_PCT,
    }
    ours = {pair: sum(gains_pct(found, *pair)) / len(found) for pair in means}
    rows = each("{} over {}, mean", ours, " %", means)
    rows.append(Row("E-Ebird over TF-Serving, best", titan.BEST_GAIN_PCT, max(enhanced), " %"))
    for model, one in found.items():
        rows += each(f"{model}, {{}}", one, "/s")
        alone = throughput_gain(titan.outside_ms(32), titan.TABLE_1_MS[model][32])
        rows.append(Row(f"{model}, hidden copies alone", None, 100 * (alone - 1), " %"))
    series = {s: [found[model][s] for model in models] for s in found[models[0]]}
    return Report(rows, bars(models, series, "requests/s within 200 ms"), (6.0, 3.0))


def hidden_part(transfer_ms: float, compute_ms: float) -> float:
    """Equation 1: the part of the time that a pool on the device saves at most, t_T / (t_T + t_C).

    Raises:
        ValueError: a time is negative, or both are 0.
    """
    if transfer_ms < 0 or compute_ms < 0 or transfer_ms + compute_ms <= 0:
        raise ValueError(
            f"times of {transfer_ms} and {compute_ms} ms; expected 0 or more, and not both 0"
        )
    return transfer_ms / (transfer_ms + compute_ms)


def throughput_gain(transfer_ms: float, compute_ms: float) -> float:
    """Throughput with copies hidden behind work, over that of one after the other, at most.

    Computing bounds it at (t_T + t_C) / t_C = 1 / (1 - equation 1), and copying, which goes on all
    the time then, at (t_T + t_C) / t_T.
    """
    part = hidden_part(transfer_ms, compute_ms)
    return 1.0 / max(part, 1.0 - part)


def highest_by_system(model: str, count: int = _COUNT) -> dict[str, float]:
    """Requests/s of each system."""
    top_rps = titan.TABLE_1_RPS[model][32]
    return {
        name: contest.highest_rps(one, model, 0.5 * top_rps, 1.3 * top_rps, count)
        for name, one in contest.entrants(model).items()
    }


def gains_pct(found: Mapping[str, Mapping[str, float]], one: str, over: str) -> list[float]:
    """By how much more a system serves than another, for each model."""
    return [100 * (rates[one] / rates[over] - 1) for rates in found.values()]
