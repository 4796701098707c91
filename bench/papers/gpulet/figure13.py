"""Figure 13: violations at the highest rate that gpulet, with or without interference, schedules.

Each schedule is run at the highest rate that its scheduler says it can serve, on simulated GPUs
whose partitions slow each other. Left open are the conditions of Figure 12. The paper's bars are
not in its text; which of them pass 1 % is: gpulet's in scen2, scen3 and scen5, none of
gpulet+int.
"""

from typing import Annotated

from bench.harness import Report, Row, bars, main
from bench.papers.gpulet.figure12 import SCHEDULERS, scheduled_rps
from bench.papers.gpulet.trial import ALLOWED, schedule, violation
from bench.planning.schedulers import MIXES

PUBLISHED_OVER = ("scen2", "scen3", "scen5")


def figure13(
    *,
    seconds: Annotated[float, "of each run; the page has 40"] = 10.0,
    names: Annotated[tuple[str, ...], "mixes"] = tuple(MIXES),
) -> Report:
    """Violations at the highest scheduled rate."""
    found = {
        s: {name: violations_pct(s, name, seconds) for name in names}
        for s in ("gpulet", "gpulet+int")
    }
    limit_pct = 100.0 * ALLOWED
    rows: list[Row] = []
    for scheduler, by_name in found.items():
        over = sum(pct > limit_pct for _, pct in by_name.values())
        published = len(PUBLISHED_OVER) if scheduler == "gpulet" else 0
        rows.append(Row(f"{scheduler}: mixes above 1 %", published, over))
        for name, (rate_rps, pct) in by_name.items():
            rows.append(Row(f"{scheduler}, {name} at {rate_rps:.0f}/s", None, pct, " %"))
    series = {s: [pct for _, pct in by_name.values()] for s, by_name in found.items()}
    drawn = bars(names, series, "violations, %", level=limit_pct)
    return Report(rows, drawn, (7.0, 3.0))


def violations_pct(scheduler: str, name: str, seconds: float) -> tuple[float, float]:
    """The highest scheduled rate of all models together, and what part is late or dropped there."""
    rate = scheduled_rps(SCHEDULERS[scheduler], name)
    plan = schedule(SCHEDULERS[scheduler], name, rate)
    assert plan is not None
    return rate * len(MIXES[name]), 100.0 * violation(plan, name, rate, seconds)


if __name__ == "__main__":
    main(figure13)
