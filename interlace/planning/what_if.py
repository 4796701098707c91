"""The same question with other rates, SLOs, hardware, one model more, or by other systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.plan import Demand
from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.scenario import Scenario
from interlace.policy.catalog import known_systems, resolve

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
            demand = tuple(replace(d, rows_per_s=d.rows_per_s * factor) for d in base.demand)
            return WhatIf(f"rates x {value}", replace(base, demand=demand))
        case "slos":
            factor = _factor(text, value)
            demand = tuple(replace(d, slo_ms=d.slo_ms * factor) for d in base.demand)
            return WhatIf(f"SLOs x {value}", replace(base, demand=demand))
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
    return replace(base, demand=(*base.demand, added), profiles=profiles)


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
