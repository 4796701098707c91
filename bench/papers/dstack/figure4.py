"""Figure 4: knees of analytic DNNs and of Mobilenet, by equation 6.

python -m bench.papers.dstack.figure4

4a and 4b are equations 1 to 5 with 50 kernels, t_p = 40 and t_np = 10, on 1 to 80 SMs. Left open:
the repetitions R_i (1 here: then E_t depends on S / N1 alone, and every knee is the same part of
N1, whatever they are, as long as they are alike; the paper's three are 0.45, 0.6 and 0.52 of N1)
and what the bars in equation 1 mean: an absolute value, or rounding down, which moves the third
knee. 4c and 4d are measurements; here they are the same equations with N1 = 16 for one row, which
makes the knee of one row 10 %. By equation 4 the serial part grows with the batch, so the knee
grows more slowly than the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from bench.papers.dstack.dnn import Dnn, generated_profile
from bench.papers.dstack.published import FIGURE_4B, FIGURE_4D
from bench.papers.dstack.show import COLOURS, Row, report
from interlace.perf.knee import knee, knee_pct, worth_of_unit
from interlace.perf.latency import surface

_KERNELS, _OP, _SERIAL = 50, 40.0, 10.0
_SMS = range(1, 81)
_MOBILENET = 16


def latencies(first: int, batch: int = 1, floored: bool = False) -> Mapping[int, float]:
    """E_t by SMs, in the figure's units."""
    dnn = Dnn(_KERNELS, first, _OP, _SERIAL, floored=floored)
    return {sms: dnn.latency_ms(sms, batch) for sms in _SMS}


def mobilenet_knees() -> Mapping[int, int]:
    """Knees in % of 80 SMs by batch."""
    shares = tuple(range(5, 101, 5))
    dnn = Dnn(_KERNELS, _MOBILENET, _OP, _SERIAL)
    known = surface(generated_profile(dnn, 80, tuple(FIGURE_4D), shares))
    return {batch: knee_pct(known, batch) for batch in FIGURE_4D}


def draw(figure: Figure) -> None:
    axes = figure.subplots(1, 2)
    for colour, first in zip(COLOURS, FIGURE_4B, strict=False):
        found = latencies(first)
        axes[0].plot(list(found), list(found.values()), color=colour, label=f"N1 = {first}")
        worth = [worth_of_unit(ms, sms) for sms, ms in found.items()]
        axes[1].plot(_SMS, [w / max(worth) for w in worth], color=colour, label=f"N1 = {first}")
        axes[1].axvline(FIGURE_4B[first], color=colour, linestyle=":", linewidth=0.8)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("E_t, units of time")
    axes[1].set_ylabel("equation 6, of its peak; dotted: published peak")
    for one in axes:
        one.set_xlabel("SMs")
        one.legend(frameon=False, fontsize=8)


def main(arguments: list[str] | None = None) -> list[Row]:
    """Print, draw, and return the rows."""
    rows = [
        Row(f"4b: knee in SMs, N1 = {first}{', rounded down' if floored else ''}",
            sms, knee(latencies(first, floored=floored)))
        for floored in (False, True)
        for first, sms in FIGURE_4B.items()
    ]  # fmt: skip
    found = mobilenet_knees()
    rows += [Row(f"4d: knee, batch of {b}", FIGURE_4D[b], found[b], " %") for b in FIGURE_4D]
    return report(__doc__, rows, draw, "figure4", arguments)


if __name__ == "__main__":
    main()
