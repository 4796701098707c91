"""The highest rate of each of gpulet's mixes that can be scheduled (Table 5, Figure 16).

All models of a mix have the same rate; each figure is relative to the best known under the papers'
rule of duty cycles: exhaustive search, which ends at its limit of steps, or our program alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Final

from bench.harness import Report, Table, main
from bench.harness.bisection import highest as bisected
from bench.planning.gpulet_profiles import profiles
from bench.planning.schedulers import MIXES, OURS, SAME_RULE, SCHEDULERS, mix, serves
from interlace.core.profile import Profile
from interlace.policy.base import Planner
from interlace.policy.planners.ideal import Ideal

_LOWEST_RPS: Final = 1.0
_TOP_RPS: Final = 1e5
_EXACTLY: Final = 1.001


def highest(*, gpus: int = 4, steps: Annotated[int, "of the exhaustive search"] = 4_000) -> Report:
    """Every scheduler on every mix, in parts of the best known."""
    planners = {"ideal": Ideal(steps), **SCHEDULERS, **OURS}
    found: dict[str, dict[str, float]] = {}
    for scheduler, planner in planners.items():
        found[scheduler] = {name: highest_rps(planner, name, gpus) for name in MIXES}
        print(f"{scheduler}: {found[scheduler]}", flush=True)
    best = {name: max(found[one][name] for one in ("ideal", SAME_RULE)) for name in MIXES}
    cells = []
    for scheduler, rates in found.items():
        parts = [rates[name] / best[name] for name in MIXES]
        cells.append((scheduler, *(f"{part:.1%}" for part in [*parts, sum(parts) / len(parts)])))
    cells.append(("best known, requests/s", *(f"{rate:.0f}" for rate in best.values()), ""))
    return Report(tables=[Table(("", *MIXES, "mean"), cells)], figures=found)


def known(nine: Mapping[str, Profile] | None = None) -> dict[str, Profile]:
    """The nine models, and the six LeNets of the game."""
    nine = nine or profiles()
    copies = {f"le{i}": replace(nine["le"], model=f"le{i}") for i in range(1, 7)}
    return {**nine, **copies}


def highest_rps(planner: Planner, name: str, gpus: int) -> float:
    """The largest rate of a mix's models that the planner serves in full."""
    there = known()
    return largest_rps(lambda rate_rps: serves(planner, mix(name, rate_rps), gpus, there))


def largest_rps(holds: Callable[[float], bool], exactly: float = _EXACTLY) -> float:
    """The largest rate for which ``holds`` is true, within 0.1 %.

    Found by doubling and halving, as if who serves a rate served all lower ones.
    """
    low = high = _LOWEST_RPS
    while high < _TOP_RPS and holds(high):
        low, high = high, high * 2.0
    return bisected(holds, low, high, exactly)


if __name__ == "__main__":
    main(highest)
