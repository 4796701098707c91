"""Figure 11: the comparison of section 7."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
from matplotlib.axes import Axes

from bench.harness import COLOURS, Report, Row, bars, each, panels
from bench.papers.dstack import v100
from bench.papers.dstack.trial import Figures, every_time_16, figures, of_table_6, run
from interlace.sim.arrivals import Times, Uniform

_TWO: Final = ("resnet50", "vgg19")
_RATES: Final = {**v100.FEW_RPS, "bert": 700.0}
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "C-2": {m: _RATES[m] for m in _TWO},
    "C-3": {m: _RATES[m] for m in (*_TWO, "bert")},
    "C-4": {m: _RATES[m] for m in (*_TWO, "bert", "mobilenet")},
    "C-7": v100.SEVEN_RPS,
}
SYSTEMS: Final = {
    "FB": "fixed",
    "T": "temporal",
    "Tri": "triton",
    "G": "gslice",
    "D-STACK": "dstack",
    "interlace": "interlace",
}
#: Powers of knee over share below the knee that C-7 is also tried with, less than the fitted one.
LESS_STEEP: Final = (0.0, 0.3, 0.6)
#: T1 to T4: whose rate falls.
FALLING: Final = ("alexnet", "mobilenet", "resnet50", "vgg19")
_LOWERED, _OFFERED = 0.4, 1.3


def figure11(
    *,
    seconds: float = 4.0,
    cases: tuple[str, ...] = tuple(CASES),
    systems: tuple[str, ...] = tuple(SYSTEMS),
    session_s: Annotated[float, "length of each of 11b's sessions"] = 2.0,
    steep: Annotated[tuple[float, ...], "powers tried below the fitted one"] = LESS_STEEP,
) -> Report:
    """Figure 11: 2, 3, 4 and 7 models under five schedulers and ours (a); rates that change (b).

    11a: fixed batches under default MPS (FB), temporal sharing (T), Triton (Tri), GSLICE (G),
    D-STACK and our row, at the paper's rates (BERT's is not given: 700/s). Throughput is what was
    answered; missed is late, dropped or refused. FB waits for 16 rows for half the SLO at most;
    "FB, 16 every time" has no timeout and drops nothing. Left open: how steep latency is below the
    knee. The bars have share^-2, which is fitted to FB and GSLICE; further rows have less.

    11b: five sessions; in each but the first one model's rate is lowered to 40 %. The others are
    offered three tenths more than Table 6's batches in every SLO.
    """
    found = {case: {name: served(name, case, seconds) for name in systems} for case in cases}
    rows = _compared(found) + _literal(cases, seconds) + _less_steep(seconds, steep)
    sessions = changing(session_s)
    for index, one in enumerate(sessions):
        rows.append(Row(f"11b T{index}: use", v100.FIGURE_11B_PCT, one.used_pct, " %"))
        rows += each(f"11b T{index}: {{}}", one.answered_rps, "/s")
    good = {n: [ones[n].good_rps for ones in found.values()] for n in systems}
    late = {n: [100 * ones[n].missed_of_all for ones in found.values()] for n in systems}
    above = bars(found, good, "in time, requests/s")
    missed = bars(found, late, "missed, %", legend=False)
    return Report(rows, panels(above, missed, lambda axes: drawn(axes, sessions)), (10.0, 3.2))


def served(name: str, case: str, seconds: float, steep: float = v100.STEEP) -> Figures:
    """One bar of 11a."""
    return run(SYSTEMS[name], of_table_6(CASES[case], v100.profiles(steep=steep)), seconds)


def _compared(found: Mapping[str, Mapping[str, Figures]]) -> list[Row]:
    """By case and scheduler."""
    rows: list[Row] = []
    for case, ones in found.items():
        rows += each(f"11a {case}: {{}}, answered", {n: f.total_rps for n, f in ones.items()}, "/s")
        late = {n: 100 * f.missed_of_all for n, f in ones.items()}
        rows += each(f"11a {case}: {{}}, missed", late, " %", {n: _missed(case, n) for n in ones})
    seven = {name: one.good_rps for name, one in found["C-7"].items()}
    used = found["C-7"]["D-STACK"].used_pct
    rows.append(Row("11a C-7: D-STACK, use", v100.SEVEN_USED_PCT, used, " %"))
    gains = {name: seven["D-STACK"] / seven[name] for name in ("FB", "T", "Tri", "G")}
    what = "11a C-7: D-STACK / {}, in time (more than)"
    return rows + each(what, gains, published=v100.SEVEN_GAIN)


def _missed(case: str, name: str) -> float | None:
    """Of the others "more than" so much, and of D-STACK nothing in C-2 to C-4."""
    if name == "interlace":
        return None
    if name == "D-STACK":
        return v100.SEVEN_MISSED_PCT["dstack"] if case == "C-7" else 0.0
    return v100.SEVEN_MISSED_PCT["others"] if case == "C-7" else None


def _literal(cases: Sequence[str], seconds: float) -> list[Row]:
    """FB without a timeout, where half the share takes twice the time."""
    rows = []
    for case in cases:
        found = every_time_16(of_table_6(CASES[case], v100.profiles(steep=0.0)), seconds)
        what, missed = f"11a {case}: FB, 16 every time, share^-1", 100 * found.missed_of_all
        rows.append(Row(f"{what}, answered", None, found.answered_rps, "/s"))
        rows.append(Row(f"{what}, missed", _missed(case, "FB"), missed, " %"))
    return rows


def _less_steep(seconds: float, powers: Sequence[float]) -> list[Row]:
    """C-7 where a small share costs less."""
    rows = []
    for power in powers:
        for name in ("FB", "G", "D-STACK", "interlace"):
            missed = 100 * served(name, "C-7", seconds, steep=power).missed_of_all
            what = f"11a C-7: {name}, missed with share^-{1 + power:g} below the knee"
            rows.append(Row(what, _missed("C-7", name), missed, " %"))
    return rows


@dataclass(frozen=True, slots=True)
class Dip:
    """Evenly random gaps; from one time to another at a lower rate."""

    rate_rps: float
    from_s: float
    until_s: float

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        times = Uniform(self.rate_rps)(seconds, random)
        inside = (times >= self.from_s * 1000.0) & (times < self.until_s * 1000.0)
        kept: Times = times[~inside | (random.uniform(size=len(times)) < _LOWERED)]
        return kept


def changing(session_s: float) -> list[Figures]:
    """The figures of T0 to T4, of one run of D-STACK."""
    rates = {m: _OFFERED * v100.BATCH * 1000.0 / v100.TABLE_6[m].slo_ms for m in FALLING}
    dips = {
        m: Dip(rates[m], index * session_s, (index + 1) * session_s)
        for index, m in enumerate(FALLING, 1)
    }
    known = of_table_6(rates, v100.profiles())
    whole = run("dstack", known, session_s * (len(FALLING) + 1), dips).record
    parts = []
    for index in range(len(FALLING) + 1):
        from_ms = whole.from_ms + index * session_s * 1000.0
        until_ms = from_ms + session_s * 1000.0
        inside = [one for one in whole.served if from_ms <= one.arrived_ms < until_ms]
        part = replace(whole, from_ms=from_ms, until_ms=until_ms, served=inside)
        parts.append(figures(part, known))
    return parts


def drawn(axes: Axes, sessions: Sequence[Figures]) -> None:
    """Throughput of each model, stacked, and use."""
    below = [0.0] * len(sessions)
    names = [f"T{index}\n{one.used_pct:.0f} %" for index, one in enumerate(sessions)]
    for colour, model in zip(COLOURS, FALLING, strict=False):
        rates = [one.answered_rps[model] for one in sessions]
        axes.bar(names, rates, bottom=below, label=model, color=colour)
        below = [low + rate for low, rate in zip(below, rates, strict=True)]
    axes.set_ylabel("answered, requests/s")
    axes.legend(frameon=False, fontsize=7, ncols=2)
