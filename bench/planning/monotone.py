"""Plans do not cost more when less is asked for: more GPUs allowed, looser SLOs, lower rates.

Random scenarios (``kept.random_scenario``) are planned as drawn, and with each change that can only
help; a law is broken where the easier one takes more GPUs, or is refused where the other is not.
Plans are found by trials with random arrivals, so the law is what users see and not what follows
from how plans are made.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

from bench.harness import Report, Table, main
from bench.planning.kept import random_scenario
from interlace.core.plan import Demand
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.scenario import Scenario


@dataclass(frozen=True, slots=True)
class MonotoneCheck:
    """One pair: GPUs of the scenario as drawn and of the easier one; ``None`` if it is refused."""

    seed: int
    change: str
    gpus: int | None
    easier_gpus: int | None

    @property
    def holds(self) -> bool:
        if self.gpus is None:
            return True
        return self.easier_gpus is not None and self.easier_gpus <= self.gpus


def monotone(
    *,
    count: Annotated[int, "scenarios drawn"] = 50,
    first: Annotated[int, "seed of the first scenario"] = 0,
    models: tuple[int, int] = (1, 9),
    gpus: Annotated[tuple[float, float], "about so many GPUs' work"] = (0.5, 6.0),
) -> Report:
    """Every scenario with every change."""
    found: list[MonotoneCheck] = []
    for seed in range(first, first + count):
        for one in checks(seed, random_scenario(seed, models, gpus)):
            found.append(one)
            print(one, "" if one.holds else "BROKEN", flush=True)
    rows = []
    for change in CHANGES:
        pairs = [one for one in found if one.change == change]
        broken = [one for one in pairs if not one.holds]
        fewer = sum((one.gpus or 0) > (one.easier_gpus or 0) for one in pairs if one.holds)
        rows.append((change, len(pairs), len(broken), fewer))
    heads = ("change", "pairs", "broken", "fewer GPUs")
    return Report(tables=[Table(heads, rows)], figures=found)


def checks(seed: int, scenario: Scenario) -> Iterator[MonotoneCheck]:
    """The scenario beside each easier one."""
    before = _gpus(plan(scenario))
    for change, easier in CHANGES.items():
        after = easier(scenario)
        if after.demand:
            yield MonotoneCheck(seed, change, before, _gpus(plan(after)))


def _gpus(found: CapacityPlan) -> int | None:
    return found.gpus if found.kept and found.served else None


def _each(scenario: Scenario, change: Callable[[Demand], Demand]) -> Scenario:
    return replace(scenario, demand=tuple(map(change, scenario.demand)))


#: What can only help.
CHANGES: Final[Mapping[str, Callable[[Scenario], Scenario]]] = {
    "twice the GPUs allowed": lambda one: replace(one, limit=2 * one.limit),
    "SLOs 1.3 times": lambda one: _each(one, lambda d: replace(d, slo_ms=1.3 * d.slo_ms)),
    "0.7 of the rates": lambda one: _each(one, lambda d: replace(d, rows_per_s=0.7 * d.rows_per_s)),
    "one model less": lambda one: replace(one, demand=one.demand[1:]),
}

if __name__ == "__main__":
    main(monotone)
