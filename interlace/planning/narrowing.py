"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.planning.trial import enough
from interlace.planning.tried_plan import PlanTrials, TriedPlan

#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.08
#: Cuts of so many accelerators that are proposed, and those of them that are tried.
_PROPOSED, _TRIED = 12, 4
#: A cut that breaks before this part of ``enough`` requests is no near miss: it uses up patience,
#: the more the sooner.
_SOON, _PATIENCE = 0.8, 1.5


@dataclass(frozen=True)
class Narrowing:
    """Cuts into pools for the models that can be served; a ``current`` plan is moved little."""

    trials: PlanTrials
    current: Plan
    _tried: dict[int, TriedPlan | None] = field(default_factory=dict)

    def fewest(self, gpus: int, least: int) -> TriedPlan | None:
        """The fewest accelerators below ``gpus``, from ``least`` up, of which a cut is kept."""
        cuts = (self.pooled(count) for count in range(max(1, least), gpus))
        return next(filter(None, cuts), None)

    def pooled(self, gpus: int) -> TriedPlan | None:
        """So many accelerators cut into pools that keep every promise, tried once."""
        if gpus not in self._tried:
            fleet = uniform_fleet(self.trials.scenario.gpu, gpus)
            self._tried[gpus] = self._kept(fleet)
        return self._tried[gpus]

    def _kept(self, fleet: Fleet) -> TriedPlan | None:
        """The first cut that keeps every promise.

        Models whose promise breaks count for more in the next attempt, and for the more the
        oftener; where they have the same hosts again, it is not tried that it breaks.
        """
        profiles = self.trials.scenario.busy_profiles
        pools = FluidPools(self._wanted, fleet, profiles, self.current)
        weight = {one.model: 1.0 for one in self._wanted}
        often = dict.fromkeys(weight, 0)
        broken: list[TriedPlan] = []
        soon, patience = _SOON * enough(self.trials.scenario), _PATIENCE
        for _ in range(_PROPOSED):
            proposed = pools.plan(weight) if weight else None
            if proposed is None:
                return None
            plan = self.trials.spread(proposed, fleet)
            found = next((one for one in broken if _breaks_alike(plan, one)), None)
            if found is None:
                found = self.trials.confirmed(plan, fleet)
                if not found.missed:
                    return found
                broken.append(found)
                patience -= max(0.0, 1.0 - found.trial.requests / soon)
                if len(found.missed) > max(2, len(weight) / 2) or patience <= 0.0:
                    return None  # it is not one model or another that has too little
                if len(broken) == _TRIED:
                    return None
            for model in found.missed:
                often[model] += 1
                weight[model] *= _MORE ** often[model]
        return None

    @cached_property
    def _wanted(self) -> Sequence[Demand]:
        hopeless = self.trials.hopeless
        demand = self.trials.scenario.demand
        return [one for one in demand if one.rows_per_s > 0 and one.model not in hopeless]


def _breaks_alike(plan: Plan, broken: TriedPlan) -> bool:
    """True if models whose promise broke have the same hosts, each with the same neighbours."""
    return _hosts(plan, broken.missed) == _hosts(broken.plan, broken.missed)


def _hosts(plan: Plan, models: Collection[str]) -> Counter[Hashable]:
    """The partitions of these models, but for rates: who is served is the engine's to say."""
    return Counter(
        (part.share_pct, frozenset((s.model, s.batch, s.guest) for s in part.slots))
        for part in plan.partitions
        if any(slot.model in models for slot in part.slots)
    )
