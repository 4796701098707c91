"""Several kinds of accelerators for one scenario: which models go on which, so that all cost least.

Work costs otherwise on each kind: a model fills little of a large accelerator, or meets its SLO on
the fast one alone (heterogeneous serving: PPipe, USENIX ATC 2025; Gavel, OSDI 2020, for training).
A model stands on one kind. Each kind's models are packed as if there were no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isfinite

from interlace.core.user_errors import InputError
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.scenario import Scenario
from interlace.policy.base import System

#: The kind of each model, as numbers: of models in the order of demand, of kinds as asked.
_Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KindsPlan:
    """A plan for each kind in use.

    ``alone_per_hour`` is what each kind costs if it serves all by itself, infinite where it does
    not keep every promise; ``bound_per_hour`` is what no choice of kinds can cost less than.
    """

    parts: tuple[CapacityPlan, ...]
    alone_per_hour: Mapping[str, float]
    bound_per_hour: float

    @property
    def cost_per_hour(self) -> float:
        """Of all accelerators in use."""
        return sum(part.cost_per_hour or 0.0 for part in self.parts)

    @property
    def kept(self) -> bool:
        """Whether every model is served and none broke its promise when it was tried."""
        return all(part.kept for part in self.parts)

    def sentences(self) -> list[str]:
        """The cost, beside the bound and each kind alone."""
        used = " and ".join(f"{part.gpus} {part.scenario.gpu.kind}" for part in self.parts)
        alone = ", ".join(
            f"{kind} {_money(cost)}" for kind, cost in sorted(self.alone_per_hour.items())
        )
        best = min(self.alone_per_hour.values())
        part = f"; {self.cost_per_hour / best:.2f} of the best kind alone" if isfinite(best) else ""
        return [
            f"{used}: {_money(self.cost_per_hour)} an hour{part}",
            f"no choice of these kinds costs less than {_money(self.bound_per_hour)} an hour; "
            f"each alone: {alone}",
        ]

    def to_dict(self) -> dict[str, object]:
        """The answer as plain values; ``None`` where a kind alone does not do."""
        return {
            "cost_per_hour": self.cost_per_hour,
            "bound_per_hour": self.bound_per_hour,
            "alone_per_hour": {
                k: v if isfinite(v) else None for k, v in self.alone_per_hour.items()
            },
            "kept": self.kept,
            "kinds": {part.scenario.gpu.kind: part.to_dict() for part in self.parts},
            "said": self.sentences(),
        }


def plan_kinds(scenarios: Sequence[Scenario], system: System) -> KindsPlan:
    """The cheapest accelerators found for one scenario read for each of several kinds.

    Never dearer than the best kind alone. Every plan is tried, as ``capacity_plan.plan`` does.

    Raises:
        InputError: a kind has no price.
    """
    for one in scenarios:
        if one.price_per_hour is None:
            kind = one.gpu.kind
            raise InputError(
                f"{kind} has no price: say what one costs an hour, with --price {kind}=USD or "
                "price_per_hour in the scenario"
            )
    bounds = [_bound(one) for one in scenarios]
    alone = {one.gpu.kind: _tried(one, range(len(one.demand)), system) for one in scenarios}
    costs = {
        kind: cost if made.kept and (cost := made.cost_per_hour) is not None else inf
        for kind, made in alone.items()
    }
    bound_per_hour, _ = _cheapest(scenarios, bounds, whole=False)
    _, choice = _cheapest(scenarios, bounds, whole=True)
    choices = {choice, *_by_unit_cost(scenarios, bounds)}
    made: list[tuple[CapacityPlan, ...]]
    made = [(alone[kind],) for kind, cost in costs.items() if isfinite(cost)]
    made += [_parts(scenarios, one, system) for one in sorted(choices) if len(set(one)) > 1]
    made = made or [_parts(scenarios, choice, system)]
    plans = [KindsPlan(parts, costs, bound_per_hour) for parts in made]
    return min(plans, key=lambda one: (not one.kept, one.cost_per_hour))


def _parts(
    scenarios: Sequence[Scenario], choice: _Choice, system: System
) -> tuple[CapacityPlan, ...]:
    """A plan for each kind that is chosen."""
    return tuple(
        _tried(scenarios[kind], [m for m, on in enumerate(choice) if on == kind], system)
        for kind in sorted(set(choice))
    )


def _tried(scenario: Scenario, models: Sequence[int], system: System) -> CapacityPlan:
    demand = tuple(scenario.demand[model] for model in models)
    return plan(replace(scenario, demand=demand), system=system)


def _bound(scenario: Scenario) -> LowerBound:
    known = [one for one in scenario.demand if one.model in scenario.profiles]
    return lower_bound(known, scenario.gpu, scenario.profiles)


def _price(scenario: Scenario) -> float:
    assert scenario.price_per_hour is not None
    return scenario.price_per_hour


def _by_unit_cost(scenarios: Sequence[Scenario], bounds: Sequence[LowerBound]) -> Iterator[_Choice]:
    """For each set of kinds, the kind on which each model's whole rate costs least."""
    costs = [
        [_price(one) * bound.configuration.price.get(d.model, inf) for d in one.demand]
        for one, bound in zip(scenarios, bounds, strict=True)
    ]
    kinds = range(len(scenarios))
    for size in kinds:
        for some in combinations(kinds, size + 1):
            models = range(len(scenarios[0].demand))
            yield tuple(min(some, key=lambda kind: costs[kind][m]) for m in models)


def _cheapest(
    scenarios: Sequence[Scenario], bounds: Sequence[LowerBound], whole: bool
) -> tuple[float, _Choice]:
    """min sum_k price_k N_k with N_k >= sum_m x_mk rate_m g_mk for whole N and sum_k x_mk = 1.

    g_mk are accelerators of kind k per request/s of model m, by area and by layouts: whatever part
    of each rate a kind serves takes no fewer of it. Models that no kind serves are left out. With
    ``whole``, x are 0 or 1. Returns a bound on the cost, and the kind of most of each model.
    """
    kinds = range(len(scenarios))
    prices = [_price(one) for one in scenarios]
    cost, integer = list(prices), [True for _ in kinds]
    by_area, by_layouts = ([({kind: 1.0}) for kind in kinds] for _ in range(2))
    rows: list[Constraint] = []
    columns: list[dict[int, int]] = []  # of each model, by kind
    for one in scenarios[0].demand:
        able = [kind for kind in kinds if one.model in bounds[kind].area.price]
        columns.append({kind: column for column, kind in enumerate(able, len(cost))})
        for kind, column in columns[-1].items():
            bound = bounds[kind]
            by_area[kind][column] = -one.rows_per_s * bound.area.price[one.model]
            by_layouts[kind][column] = -one.rows_per_s * bound.configuration.price[one.model]
        if able:
            parts = tuple(columns[-1].values())
            rows.append(Constraint(parts, (1.0,) * len(able), 1.0, 1.0))
        cost += [0.0] * len(able)
        integer += [whole] * len(able)
    for entries in (*by_area, *by_layouts):
        rows.append(Constraint(tuple(entries), tuple(entries.values()), 0.0, inf))
    upper = [inf if column in kinds else 1.0 for column in range(len(cost))]
    found = solve(LinearProgram(cost, [0.0] * len(cost), upper, integer, rows))
    choice = [max(own, key=lambda kind: found.values[own[kind]]) if own else 0 for own in columns]
    return found.bound, tuple(choice)


def _money(per_hour: float) -> str:
    return f"{per_hour:.2f}" if isfinite(per_hour) else "not kept"
