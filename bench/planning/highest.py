"""The highest rate of each of gpulet's mixes that can be scheduled (Table 5, Figure 16).

All models of a mix have the same rate; each figure is relative to the best known under the papers'
rule of duty cycles: exhaustive search, which ends at its limit of steps.
With ``--engine``: the rates that ``interlace plan`` tells as kept on so many GPUs, and those that
the engine keeps by any plan that is known here (``bench.planning.kept``), found within 2 %.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Final

from bench.harness import Report, Table, main
from bench.harness.bisection import highest as bisected
from bench.planning.gpulet_profiles import profiles
from bench.planning.kept import PromiseCheck, check
from bench.planning.schedulers import (
    GPU,
    MIXES,
    SCHEDULERS,
    mix,
    serves,
)
from interlace.core.profile import Profile
from interlace.planning.scenario import Scenario
from interlace.policy.base import Planner
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.patterns import Patterns

_LOWEST_RPS: Final = 1.0
_TOP_RPS: Final = 1e5
_EXACTLY: Final = 1.001
_TRIED: Final = 1.02
_CHANCE: Final = 0.01  #: of a kept plan to count as broken
_SEEDS, _SECONDS = 5, 4.0  #: of the fresh runs that a plan is held to


def highest(
    *,
    gpus: int = 4,
    steps: Annotated[int, "of the exhaustive search"] = 4_000,
    engine: Annotated[bool, "what is told and kept by trial, too"] = False,
) -> Report:
    """Every scheduler on every mix, in parts of the best known."""
    planners = {"ideal": Ideal(steps), **SCHEDULERS, "interlace": Patterns()}
    found: dict[str, dict[str, float]] = {}
    for scheduler, planner in planners.items():
        found[scheduler] = {name: highest_rps(planner, name, gpus) for name in MIXES}
        print(f"{scheduler}: {found[scheduler]}", flush=True)
    if engine:
        tried = {name: tried_rps(name, gpus, found["interlace"][name]) for name in MIXES}
        found["interlace plan tells"] = {name: told for name, (told, _) in tried.items()}
        found["the engine keeps"] = {name: kept for name, (_, kept) in tried.items()}
    best = found["ideal"]
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


def tried_rps(name: str, gpus: int, promised_rps: float) -> tuple[float, float]:
    """The largest rates of a mix that our plan is told to keep, and that some plan keeps.

    Looked for from what the packer promises without a trial up to half as much again.
    """
    there, checks = known(), dict[float, PromiseCheck]()

    def checked(rate_rps: float) -> PromiseCheck:
        if rate_rps not in checks:
            asked = Scenario(tuple(mix(name, rate_rps)), GPU, there, limit=gpus)
            chance = _CHANCE / len(asked.demand)
            checks[rate_rps] = check(name, asked, _SEEDS, _SECONDS, chance)
        return checks[rate_rps]

    low, high = promised_rps * 0.97, promised_rps * 1.5
    told = bisected(lambda rate: checked(rate).told and checked(rate).kept, low, high, _TRIED)
    kept = bisected(lambda rate: checked(rate).can, told, high, _TRIED)
    print(f"{name}: {told:.0f} told, {kept:.0f} kept", flush=True)
    return told, kept


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
