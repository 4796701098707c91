"""What would keep a promise that a plan does not keep: tried, not guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from interlace.core.plan import Demand
from interlace.core.tables import counted
from interlace.perf.latency import surface
from interlace.planning.capacity_plan import CapacityPlan
from interlace.planning.promise import kept_plan
from interlace.planning.scenario import Scenario
from interlace.planning.systems import system_of
from interlace.policy.base import System

#: Times the SLO, or the time that one row takes alone if that is more, and times the rate.
_LONGER: Final = (1.2, 1.5, 2.0, 3.0, 5.0)
_FEWER: Final = (0.9, 0.75, 0.5, 0.25)


def advice(found: CapacityPlan, system: System | str) -> str:
    """What is wrong with the model that fares worst, and what would help; "" if all is kept.

    A longer SLO, a lower rate and, where all are used, one accelerator more are each planned and
    tried, the smallest change first.
    """
    asked = _worst(found)
    if asked is None:
        return ""
    row = system_of(system)
    helps = [
        words
        for changes in (_slos(found, asked), _rates(found, asked), _more(found))
        for words in _first(changes, asked.model, row)
    ]
    left = found.plan.unserved_rows_per_s.get(asked.model, 0.0)
    if left:
        wrong = f"{left:.4g} of {asked.rows_per_s:g} requests/s of {asked.model} are not served"
    else:
        tried = found.trial.models[asked.model]
        wrong = (
            f"{asked.model} is in time for {100 * tried.attainment:.2f} % of its requests, "
            f"{100 * asked.attainment:g} % are asked for"
        )
    if not helps:
        return f"{wrong}; no SLO up to {_LONGER[-1]:g} times as long and no lower rate helped"
    return f"{wrong}; it would be kept {', or '.join(helps)}"


def _worst(found: CapacityPlan) -> Demand | None:
    """The model with most of its rate unserved, else the one whose promise broke by most."""
    asked = {one.model: one for one in found.scenario.demand}
    left = found.plan.unserved_rows_per_s
    short = sorted(
        found.plan.underserved & asked.keys(),
        key=lambda m: (-left[m] / max(asked[m].rows_per_s, 1e-9), m),
    )
    worst = next(iter([*short, *found.trial.broken]), None)
    return None if worst is None else asked[worst]


def _first(changes: Iterator[tuple[str, Scenario]], model: str, system: System) -> list[str]:
    """The first change by which the model is served and its promise kept, in words."""
    for words, scenario in changes:
        tried = kept_plan(scenario, replace(system, tried=False))
        if model not in tried.plan.underserved and model not in tried.trial.broken:
            return [words]
    return []


def _slos(found: CapacityPlan, asked: Demand) -> Iterator[tuple[str, Scenario]]:
    known = found.scenario.busy_profiles.get(asked.model)
    if known is None or not known.points:
        return
    least_ms = max(asked.slo_ms, surface(known).latency_ms(1, 100))
    for factor in _LONGER:
        slo_ms = float(f"{least_ms * factor:.3g}")
        yield f"within {slo_ms:g} ms", _with(found.scenario, asked, replace(asked, slo_ms=slo_ms))


def _rates(found: CapacityPlan, asked: Demand) -> Iterator[tuple[str, Scenario]]:
    for factor in _FEWER:
        rate = float(f"{asked.rows_per_s * factor:.3g}")
        less = replace(asked, rows_per_s=rate)
        yield f"at {rate:g} requests/s", _with(found.scenario, asked, less)


def _more(found: CapacityPlan) -> Iterator[tuple[str, Scenario]]:
    if found.gpus >= found.scenario.limit:
        more = found.scenario.limit + 1
        yield f"on {counted(more, 'GPU')}", replace(found.scenario, limit=more)


def _with(scenario: Scenario, asked: Demand, other: Demand) -> Scenario:
    demand = tuple(other if one is asked else one for one in scenario.demand)
    return replace(scenario, demand=demand)
