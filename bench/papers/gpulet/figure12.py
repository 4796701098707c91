"""Figure 12: the highest throughput without violations of two applications and five scenarios.

A rate counts if the scheduler has a schedule for it and, when that is run, no more than 1 % of
the requests are late or dropped. It is run on simulated GPUs whose partitions slow each other.

Left open: the latencies (shaped after Table 4 and Figure 3) and the interference (a law made to
have Figure 6's 90th percentile); the rate planned for a Poisson stream (the 99th percentile of a
second's count, as in the released code, for every scheduler); the dataflow of the applications
(their models are asked side by side, traffic with half its SLO for each phase); the network,
which fed the paper's GPUs over 10 Gbit/s, is not modelled. --why
repeats the comparison for profiles whose large batches use less of a GPU, and for schedules that
expect a part of the slowdown; the page has it with --seconds 12.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from bench.harness import Report, Row, bars, each, main
from bench.papers.gpulet.law import LAW, Law
from bench.papers.gpulet.trial import ALLOWED, schedule, violation
from bench.planning.gpulet_profiles import profiles
from bench.planning.highest import known, largest_rps
from bench.planning.schedulers import MIXES
from interlace.core.profile import Profiles
from interlace.policy.base import Planner
from interlace.policy.planners.bestfit import bestfit
from interlace.policy.planners.gpulet import Gpulet
from interlace.policy.planners.nexus import Nexus

SCHEDULERS: Mapping[str, Planner] = {
    "SBP": Nexus(),
    "greedy best-fit": bestfit,
    "gpulet": Gpulet(),
    "gpulet+int": Gpulet(LAW),
}
#: Section 5.2: gpulet+int over the others on average, and over SBP on game (1650 against 690).
OVER_SBP, OVER_BEST_FIT, OVER_GPULET, GAME = 1.617, 1.812, 1.075, 1650.0 / 690.0

_STEP = 0.96
_LEAST = 0.3
_SECONDS = 6.0
_POWERS = (0.9, 0.6, 0.4)
_PARTS_OF_LAW = (0.25, 0.5)


def figure12(
    *,
    seconds: Annotated[float, "of each run"] = _SECONDS,
    names: Annotated[tuple[str, ...], "mixes"] = tuple(MIXES),
    why: Annotated[bool, "what the averages depend on, too"] = False,
) -> Report:
    """The highest throughput of every mix."""
    found = {s: throughput(planner, seconds, names) for s, planner in SCHEDULERS.items()}
    ours = {name: max(1e-9, rate) for name, rate in found["gpulet+int"].items()}
    series = {s: [rates[n] / ours[n] for n in names] for s, rates in found.items()}
    drawn = bars(names, series, "throughput / gpulet+int")
    return Report(_compared(found) + (_why(found) if why else []), drawn, (8.0, 3.0))


def scheduled_rps(planner: Planner, name: str, there: Profiles | None = None) -> float:
    """The highest rate of each model of a mix that is schedulable."""
    return largest_rps(lambda rate: schedule(planner, name, rate, there) is not None, 1.01)


def kept_rps(planner: Planner, name: str, seconds: float, there: Profiles | None = None) -> float:
    """The highest rate, in steps of 4 %, that is schedulable and kept when run."""
    top = rate = scheduled_rps(planner, name, there)
    while rate > top * _LEAST:
        plan = schedule(planner, name, rate, there)
        if plan is not None and violation(plan, name, rate, seconds, there) <= ALLOWED:
            return rate
        rate *= _STEP
    return 0.0


def throughput(
    planner: Planner, seconds: float, names: Sequence[str], there: Profiles | None = None
) -> dict[str, float]:
    """Requests/s of all models together, by mix."""
    return {n: kept_rps(planner, n, seconds, there) * len(MIXES[n]) for n in names}


def _why(found: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """What the averages depend on: how much of a GPU large batches use, how much is feared."""
    rows, names = [], tuple(MIXES)
    for power in _POWERS:
        there = known(profiles(speedup=power))
        sbp, ours = (
            throughput(SCHEDULERS[s], _SECONDS, names, there) for s in ("SBP", "gpulet+int")
        )
        name = f"latency as share to the power -{power:g}: gpulet+int / SBP"
        rows.append(Row(name, OVER_SBP, _mean(ours, sbp)))
    for part in _PARTS_OF_LAW:
        kept = throughput(Gpulet(Law(LAW.scale * part)), _SECONDS, names)
        name = f"{part:g} of the slowdown planned for: gpulet+int / gpulet"
        rows.append(Row(name, OVER_GPULET, _mean(kept, found["gpulet"])))
    return rows


def _compared(found: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The figures that the paper's text has, and each mix."""
    ours = found["gpulet+int"]
    printed = {"SBP": OVER_SBP, "greedy best-fit": OVER_BEST_FIT, "gpulet": OVER_GPULET}
    means = {name: _mean(ours, found[name]) for name in printed}
    rows = each("gpulet+int / {}, mean", means, published=printed)
    if "game" in ours:
        rows.append(Row("gpulet+int / SBP, game", GAME, ours["game"] / found["SBP"]["game"]))
    for name in ours:
        rows += each(f"{name}: {{}}", {s: rates[name] for s, rates in found.items()}, "/s")
    return rows


def _mean(values: Mapping[str, float], over: Mapping[str, float]) -> float:
    return sum(values[n] / over[n] for n in values if over[n]) / len(values)


if __name__ == "__main__":
    main(figure12)
