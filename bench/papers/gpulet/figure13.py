"""Figure 13: violations at the highest rate that gpulet, with or without interference, schedules.

python -m bench.papers.gpulet.figure13 [--full]

Each schedule is run at the highest rate that its scheduler says it can serve, on simulated GPUs
whose partitions slow each other. Left open are the conditions of Figure 12. The paper's bars are
not in its text; which of them pass 1 % is: gpulet's in scen2, scen3 and scen5, none of
gpulet+int.
"""

from __future__ import annotations

from bench.papers.gpulet.compare import Row, bars, options, save, show
from bench.papers.gpulet.figure12 import SCHEDULERS, scheduled_rps
from bench.papers.gpulet.trial import ALLOWED, schedule, violation
from bench.planning.schedulers import MIXES

PUBLISHED_OVER = ("scen2", "scen3", "scen5")
_SECONDS, _FULL_SECONDS = 10.0, 40.0


def violations_pct(scheduler: str, name: str, seconds: float) -> tuple[float, float]:
    """The highest scheduled rate of all models together, and what part is late or dropped there."""
    rate = scheduled_rps(SCHEDULERS[scheduler], name)
    plan = schedule(SCHEDULERS[scheduler], name, rate)
    assert plan is not None
    return rate * len(MIXES[name]), 100.0 * violation(plan, name, rate, seconds)


def main(
    arguments: list[str] | None = None,
    seconds: float = _SECONDS,
    names: tuple[str, ...] = tuple(MIXES),
) -> list[Row]:
    """Print, draw, and return the rows."""
    chosen = options(__doc__).parse_args(arguments)
    seconds = _FULL_SECONDS if chosen.full else seconds
    found = {
        s: {name: violations_pct(s, name, seconds) for name in names}
        for s in ("gpulet", "gpulet+int")
    }
    rows: list[Row] = []
    for scheduler, by_name in found.items():
        limit_pct = 100.0 * ALLOWED
        over = sum(pct > limit_pct for _, pct in by_name.values())
        published = len(PUBLISHED_OVER) if scheduler == "gpulet" else 0
        rows.append(Row(f"{scheduler}: mixes above 1 %", published, over))
        for name, (rate_rps, pct) in by_name.items():
            rows.append(Row(f"{scheduler}, {name} at {rate_rps:.0f}/s", None, pct, " %"))
    show("gpulet Figure 13: SLO violations", __doc__ or "", rows)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    bars(figure, names, {s: [v for _, v in b.values()] for s, b in found.items()}, "violations, %")
    figure.axes[0].axhline(100.0 * ALLOWED, color="black", lw=0.8)
    save(figure, chosen.out, "figure13")
    return rows


if __name__ == "__main__":
    main()
