"""Figure 16: the highest schedulable rate of each mix, gpulet+int relative to the ideal.

The ideal tries every way to cut four GPUs with gpulet's own placement. Left open: the latencies
(shaped after Table 4 and Figure 3), the interference (Figure 6's law), and whether rates are
planned with room for Poisson arrivals (as in Figure 12, they are).
"""

from typing import Annotated

from bench.harness import Report, Row, bars, each, main
from bench.harness.bisection import highest as bisected
from bench.papers.gpulet.figure12 import scheduled_rps
from bench.papers.gpulet.law import LAW
from bench.papers.gpulet.trial import EveryCut, schedule
from bench.planning.schedulers import MIXES
from interlace.policy.planners.gpulet import Gpulet

PUBLISHED_PCT = 92.6
_TOP = 1.8  #: the ideal is looked for up to this multiple of gpulet's rate


def figure16(
    *,
    names: Annotated[tuple[str, ...], "mixes"] = tuple(MIXES),
    exactly: Annotated[float, "the ideal's rate is found within this factor"] = 1.015,
) -> Report:
    """The highest rate of every mix."""
    found = {name: highest(name, exactly) for name in names}
    parts = {name: 100.0 * ours / ideal for name, (ours, ideal) in found.items()}
    rows = [
        Row("gpulet+int / ideal, mean", PUBLISHED_PCT, sum(parts.values()) / len(parts), " %"),
        *each("gpulet+int / ideal, {}", parts, " %"),
    ]
    series = {"ideal": [100.0] * len(parts), "gpulet+int": list(parts.values())}
    return Report(rows, bars(parts, series, "highest rate, % of ideal"), (6.0, 3.0))


def highest(name: str, exactly: float) -> tuple[float, float]:
    """The highest rates of each model of a mix: of gpulet+int, and of the ideal."""
    ours, ideal = Gpulet(LAW), EveryCut(Gpulet(LAW))
    mine = scheduled_rps(ours, name)

    def fits(rate_rps: float) -> bool:
        return schedule(ideal, name, rate_rps) is not None

    return mine, bisected(fits, mine, mine * _TOP, exactly)


if __name__ == "__main__":
    main(figure16)
