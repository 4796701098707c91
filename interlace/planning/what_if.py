"""Variants of a scenario: asked for, or looked for where an SLO is missed; systems compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from interlace.core.plan import Demand
from interlace.core.tables import counted, did_you_mean
from interlace.core.user_errors import InputError
from interlace.perf.latency import surface
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.policy.base import System
from interlace.policy.catalog import known_systems, resolve, system_of

_FORMS: Final = "rates=0.5,1,2 or slos=1,2 or gpu=h100,a100 or model=NAME:RPS:MS"

#: The scenario again, for another kind of GPU.
ReadScenario = Callable[[str | None], Scenario]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A scenario that differs from the one asked for in what ``name`` says."""

    name: str
    scenario: Scenario


def what_ifs(asked: Sequence[str], base: Scenario, other_gpu: ReadScenario) -> list[WhatIf]:
    """The base scenario, then one for each value of every ``KIND=VALUES`` in ``asked``.

    ``other_gpu`` reads the scenario again for another kind of GPU.

    Raises:
        InputError: not of that form, or a model that has no profile.
    """
    found = [WhatIf("as asked", base)]
    for text in asked:
        kind, equals, values = text.partition("=")
        if not equals or not values:
            raise InputError(f"--what-if {text}: expected {_FORMS}")
        found += [_what_if(text, kind, value, base, other_gpu) for value in values.split(",")]
    return found


def _what_if(text: str, kind: str, value: str, base: Scenario, other_gpu: ReadScenario) -> WhatIf:
    match kind:
        case "rates":
            factor = _factor(text, value)
            return WhatIf(f"rates x {value}", base.times(factor))
        case "slos":
            factor = _factor(text, value)
            longer = {one.model: one.slo_ms * factor for one in base.promises}
            return WhatIf(f"SLOs x {value}", base.asked(slos_ms=longer))
        case "gpu":
            return WhatIf(f"on {value}", other_gpu(value))
        case "model":
            return WhatIf(f"{value} more", _with_model(text, value, base))
        case _:
            raise InputError(f"--what-if {text}: expected {_FORMS}")


def _factor(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = -1.0
    if not 0 < factor < 1e6:
        raise InputError(f"--what-if {text}: '{value}' is not a number above 0")
    return factor


def _with_model(text: str, value: str, base: Scenario) -> Scenario:
    """One model more; of one that is there already, a second tenant with an SLO of its own."""
    name, _, figures = value.partition(":")
    rate, _, slo = figures.partition(":")
    if name not in base.profiles:
        raise InputError(
            f"--what-if {text}: there is no profile of '{name}'{did_you_mean(name, base.profiles)}"
        )
    taken = {one.model for one in base.demand}
    tenant = name
    while tenant in taken:
        tenant += "+"
    added = Demand(tenant, _factor(text, rate), _factor(text, slo))
    profiles = {**base.profiles, tenant: base.profiles[name]}
    return replace(base, profiles=profiles).with_own((*base.own, added))


def compare_systems(
    scenario: Scenario, on_next: Callable[[str], None] = lambda text: None
) -> list[CapacityPlan]:
    """A plan by every system of the catalog, and every installed one.

    ``on_next`` is called with the name of each before it plans. Those that serve everything come
    first, then those with the fewest accelerators, then by the expected attainment of the model
    that fares worst.
    """
    found: list[CapacityPlan] = []
    systems = [resolve(name) for name in known_systems()]
    for number, system in enumerate(systems, 1):
        on_next(f"{number} of {len(systems)}: {system.name}")
        bound = found[0].bound if found else None
        found.append(plan(scenario, system=system, bound=bound))
    return sorted(
        found, key=lambda one: (not one.served, one.gpus, -one.worst_attainment, one.system)
    )


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
    left = found.plan.unserved_rows_per_s
    if lost := [m for m in found.scenario.members([asked.model]) if left.get(m)]:
        rate = next(one.rows_per_s for one in found.scenario.demand if one.model == lost[0])
        wrong = f"{left[lost[0]]:.4g} of {rate:g} requests/s of {lost[0]} are not served"
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
    """The model or app with most of its rate unserved, else whose promise broke by most."""
    known, left = found.scenario, found.plan.unserved_rows_per_s
    rates = {one.model: one.rows_per_s for one in known.demand}
    short = sorted(
        found.plan.underserved & rates.keys(),
        key=lambda m: (-left[m] / max(rates[m], 1e-9), m),
    )
    needing = (one for m in short for one in known.promises if m in known.members([one.model]))
    broken = (one for name in found.trial.broken for one in known.promises if one.model == name)
    return next(chain(needing, broken), None)


def _first(changes: Iterator[tuple[str, Scenario]], name: str, system: System) -> list[str]:
    """The first change by which the model or app is served and its promise kept, in words."""
    for words, scenario in changes:
        tried = search_plan(scenario, replace(system, tried=False))
        served = tried.plan.underserved.isdisjoint(scenario.members([name]))
        if served and name not in tried.trial.broken:
            return [words]
    return []


def _slos(found: CapacityPlan, asked: Demand) -> Iterator[tuple[str, Scenario]]:
    known = [found.scenario.busy_profiles.get(m) for m in found.scenario.members([asked.model])]
    if any(one is None or not one.points for one in known):
        return
    least_ms = max(asked.slo_ms, *(surface(one).latency_ms(1, 100) for one in known if one))
    for factor in _LONGER:
        slo_ms = float(f"{least_ms * factor:.3g}")
        yield f"within {slo_ms:g} ms", found.scenario.asked(slos_ms={asked.model: slo_ms})


def _rates(found: CapacityPlan, asked: Demand) -> Iterator[tuple[str, Scenario]]:
    for factor in _FEWER:
        rate = float(f"{asked.rows_per_s * factor:.3g}")
        yield f"at {rate:g} requests/s", found.scenario.asked({asked.model: rate})


def _more(found: CapacityPlan) -> Iterator[tuple[str, Scenario]]:
    if found.gpus >= found.scenario.limit:
        more = found.scenario.limit + 1
        yield f"on {counted(more, 'GPU')}", replace(found.scenario, limit=more)
