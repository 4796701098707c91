"""Several kinds of accelerators for one scenario: which models go on which, so that all cost least.

Work costs otherwise on each kind: a model fills little of a large accelerator, or meets its SLO on
the fast one alone (heterogeneous serving: PPipe, USENIX ATC 2025; Gavel, OSDI 2020, for training).
A model stands on one kind. Each kind's models are packed as if there were no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf, isfinite

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Demand, Plan
from interlace.core.user_errors import InputError
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.packing.fluid_pools import FluidPools
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.scenario import Scenario
from interlace.planning.simulated_plan import PlanTrials
from interlace.policy.base import System
from interlace.policy.fewest import fewest

#: How many of a kind's models, the least dear elsewhere first, are tried on another kind together.
_MOST_MOVED = 3

#: Times the bound's accelerators up to which pools are looked for.
_MOST_POOLED = 2

#: How many accelerators of its kind a scenario takes; infinite where none do.
_Count = Callable[[Scenario], float]
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
    cheapest = min(costs, key=lambda kind: costs[kind])
    found = KindsPlan((), costs, _bound_per_hour(scenarios, bounds))
    counts = [_packed(system), _pooled(system)] if system.tried else [_packed(system)]
    prices = _unit_costs(scenarios, bounds)
    choices = {_Choices(scenarios, count, prices).best() for count in counts}
    made = [_parts(scenarios, choice, system) for choice in sorted(choices)]
    if isfinite(costs[cheapest]):
        made.insert(0, (alone[cheapest],))
    plans = [replace(found, parts=parts) for parts in made]
    return min(plans, key=lambda one: (not one.kept, one.cost_per_hour))


def _parts(
    scenarios: Sequence[Scenario], choice: _Choice, system: System
) -> tuple[CapacityPlan, ...]:
    """A plan for each kind that is chosen."""
    return tuple(
        _tried(scenarios[kind], [m for m, on in enumerate(choice) if on == kind], system)
        for kind in sorted(set(choice))
    )


def _packed(system: System) -> _Count:
    """Accelerators that the system's packer asks for, which may be too careful."""

    def count(one: Scenario) -> float:
        made, fleet = fewest(system.packer, one.demand, one.gpu, one.limit, one.busy_profiles)
        return inf if made.underserved else len(fleet.gpus)

    return count


def _pooled(system: System) -> _Count:
    """Accelerators that have time for all rates in pools, which may be too few."""
    packed = _packed(system)

    def count(one: Scenario) -> float:
        wanted = [asked for asked in one.demand if asked.rows_per_s > 0]
        if not wanted or PlanTrials(one, system).hopeless:
            return packed(one)  # nothing to pool, or what no pool serves
        least = max(1, _bound(one).gpus)
        for gpus in range(least, min(_MOST_POOLED * least, one.limit) + 1):
            pools = FluidPools(wanted, uniform_fleet(one.gpu, gpus), one.busy_profiles, Plan())
            if pools.plan({asked.model: 1.0 for asked in wanted}) is not None:
                return gpus
        return inf

    return count


def _tried(scenario: Scenario, models: Sequence[int], system: System) -> CapacityPlan:
    return plan(replace(scenario, demand=_of(scenario, models)), system=system)


def _of(scenario: Scenario, models: Sequence[int]) -> tuple[Demand, ...]:
    return tuple(scenario.demand[model] for model in models)


def _bound(scenario: Scenario) -> LowerBound:
    known = [one for one in scenario.demand if one.model in scenario.profiles]
    return lower_bound(known, scenario.gpu, scenario.profiles)


def _price(scenario: Scenario) -> float:
    assert scenario.price_per_hour is not None
    return scenario.price_per_hour


def _unit_costs(scenarios: Sequence[Scenario], bounds: Sequence[LowerBound]) -> list[list[float]]:
    """The least that each model's whole rate costs an hour, by kind; infinite where it cannot."""
    return [
        [
            _price(one) * bound.configuration.price.get(d.model, inf) * d.rows_per_s
            if d.rows_per_s > 0 else 0.0
            for d in one.demand
        ]
        for one, bound in zip(scenarios, bounds, strict=True)
    ]  # fmt: skip


def _bound_per_hour(scenarios: Sequence[Scenario], bounds: Sequence[LowerBound]) -> float:
    """min sum_k price_k N_k with N_k >= sum_m x_mk rate_m g_mk for whole N and sum_k x_mk = 1.

    g_mk are accelerators of kind k per request/s of model m, by area and by layouts: whatever part
    of each rate a kind serves takes no fewer of it. Models that no kind serves are left out.
    """
    kinds = range(len(scenarios))
    prices = [_price(one) for one in scenarios]
    cost, integer = list(prices), [True for _ in kinds]
    by_area, by_layouts = ([({kind: 1.0}) for kind in kinds] for _ in range(2))
    rows: list[Constraint] = []
    for one in scenarios[0].demand:
        able = [kind for kind in kinds if one.model in bounds[kind].area.price]
        for column, kind in enumerate(able, len(cost)):
            bound = bounds[kind]
            by_area[kind][column] = -one.rows_per_s * bound.area.price[one.model]
            by_layouts[kind][column] = -one.rows_per_s * bound.configuration.price[one.model]
        if able:
            parts = tuple(range(len(cost), len(cost) + len(able)))
            rows.append(Constraint(parts, (1.0,) * len(able), 1.0, 1.0))
        cost += [0.0] * len(able)
        integer += [False] * len(able)
    for entries in (*by_area, *by_layouts):
        rows.append(Constraint(tuple(entries), tuple(entries.values()), 0.0, inf))
    upper = [inf if whole else 1.0 for whole in integer]
    return solve(LinearProgram(cost, [0.0] * len(cost), upper, integer, rows)).bound


class _Choices:
    """Kinds for all models, the accelerators of each choice counted."""

    def __init__(
        self, scenarios: Sequence[Scenario], count: _Count, costs: Sequence[Sequence[float]]
    ) -> None:
        self._scenarios = scenarios
        self._count = count
        self._costs = costs
        self._counted: dict[tuple[int, frozenset[int]], float] = {}

    def best(self) -> _Choice:
        """The cheapest kind for each model out of the best set of kinds, then what moves bring."""
        kinds = range(len(self._scenarios))
        sets = [one for size in kinds for one in combinations(kinds, size + 1)]
        best = min(map(self._cheapest_of, sets), key=self._per_hour)
        moved = True
        while moved:
            moved = False
            for other in self._moves(best):
                if self._per_hour(other) < self._per_hour(best):
                    best, moved = other, True
                    break
        return best

    def _cheapest_of(self, kinds: Sequence[int]) -> _Choice:
        models = range(len(self._scenarios[0].demand))
        return tuple(min(kinds, key=lambda kind: self._costs[kind][m]) for m in models)

    def _moves(self, choice: _Choice) -> Iterator[_Choice]:
        """A few of one kind's models on another, those that cost least more there first."""
        for old, new in product(range(len(self._scenarios)), repeat=2):
            here = [m for m, kind in enumerate(choice) if kind == old]
            able = [m for m in here if old != new and isfinite(self._costs[new][m])]
            able.sort(key=lambda m: self._costs[new][m] - self._costs[old][m])
            for count in range(1, min(len(able), _MOST_MOVED) + 1):
                yield tuple(new if m in able[:count] else kind for m, kind in enumerate(choice))

    def _per_hour(self, choice: _Choice) -> float:
        return sum(
            self._cost(kind, frozenset(m for m, on in enumerate(choice) if on == kind))
            for kind in set(choice)
        )

    def _cost(self, kind: int, models: frozenset[int]) -> float:
        """What so many accelerators cost an hour; infinite where something is left unserved."""
        known = self._counted.get((kind, models))
        if known is None:
            one = self._scenarios[kind]
            known = _price(one) * self._count(replace(one, demand=_of(one, sorted(models))))
            self._counted[kind, models] = known
        return known


def _money(per_hour: float) -> str:
    return f"{per_hour:.2f}" if isfinite(per_hour) else "not kept"
