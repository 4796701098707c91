"""Figure 4: knees of analytic DNNs and of Mobilenet, by equation 6.

4a and 4b are equations 1 to 5 with 50 kernels, t_p = 40 and t_np = 10, on 1 to 80 SMs. Left open:
the repetitions R_i (1 here: then E_t depends on S / N1 alone, and every knee is the same part of
N1, whatever they are, as long as they are alike; the paper's three are 0.45, 0.6 and 0.52 of N1)
and what the bars in equation 1 mean: an absolute value, or rounding down, which moves the third
knee. With ``--draws`` counts R_i of 1 to 12 are drawn anew for each kernel: only such counts, of
each case's own, move the knees apart as the paper has them. 4c and 4d are measurements; here they
are the same equations with N1 = 16 for one row, which makes the knee of one row 10 %. By equation 4
the serial part grows with the batch, so the knee grows more slowly than the batch.
"""

from collections.abc import Mapping
from random import Random
from typing import Annotated, Final

from matplotlib.figure import Figure

from bench.harness import COLOURS, Report, Row, each, main
from bench.papers.dstack.dnn import Dnn, generated_profile
from bench.papers.dstack.published import FIGURE_4B, FIGURE_4D
from interlace.perf.latency import surface
from interlace.perf.sizing import knee, knee_pct, worth_of_unit

_KERNELS, _OP, _SERIAL = 50, 40.0, 10.0
_SMS: Final = range(1, 81)
_MOBILENET: Final = 16
_MOST_REPEATS: Final = 12


def figure4(*, draws: Annotated[int, "sets of repetition counts R_i"] = 0) -> Report:
    """Knees by the printed equations."""
    rows = [
        Row(f"4b: knee in SMs, N1 = {first}{', rounded down' if floored else ''}",
            sms, knee(latencies(first, floored=floored)))
        for floored in (False, True)
        for first, sms in FIGURE_4B.items()
    ]  # fmt: skip
    rows += each("4d: knee, batch of {}", mobilenet_knees(), " %", FIGURE_4D)
    for first, sms in FIGURE_4B.items() if draws else ():
        knees = drawn(first, draws)
        for part in (1, 99):
            at = knees[min(draws - 1, part * draws // 100)]
            rows.append(Row(f"4b: N1 = {first}, R_i drawn, {part} % below", sms, at))
        hits = 100.0 * knees.count(sms) / draws
        rows.append(Row(f"4b: N1 = {first}, R_i drawn, as published", None, hits, " %"))
    return Report(rows, _draw)


def latencies(
    first: int, repetitions: tuple[int, ...] = (), floored: bool = False
) -> Mapping[int, float]:
    """E_t by SMs, in the figure's units."""
    dnn = Dnn(_KERNELS, first, _OP, _SERIAL, repetitions, floored=floored)
    return {sms: dnn.latency_ms(sms, 1) for sms in _SMS}


def drawn(first: int, draws: int) -> list[int]:
    """Knees with repetition counts drawn anew, ascending."""
    chance = Random(first)
    return sorted(
        knee(latencies(first, tuple(chance.randint(1, _MOST_REPEATS) for _ in range(_KERNELS))))
        for _ in range(draws)
    )


def mobilenet_knees() -> Mapping[int, int]:
    """Knees in % of 80 SMs by batch."""
    shares = tuple(range(5, 101, 5))
    dnn = Dnn(_KERNELS, _MOBILENET, _OP, _SERIAL)
    known = surface(generated_profile(dnn, 80, tuple(FIGURE_4D), shares))
    return {batch: knee_pct(known, batch) for batch in FIGURE_4D}


def _draw(figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    for colour, first in zip(COLOURS, FIGURE_4B, strict=False):
        found = latencies(first)
        left.plot(list(found), list(found.values()), color=colour, label=f"N1 = {first}")
        worth = [worth_of_unit(ms, sms) for ms, sms in found.items()]
        right.plot(_SMS, [w / max(worth) for w in worth], color=colour, label=f"N1 = {first}")
        right.axvline(FIGURE_4B[first], color=colour, linestyle=":", linewidth=0.8)
    left.set(yscale="log", ylabel="E_t, units of time")
    right.set(ylabel="equation 6, of its peak; dotted: published peak")
    for one in (left, right):
        one.set_xlabel("SMs")
        one.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main(figure4)
