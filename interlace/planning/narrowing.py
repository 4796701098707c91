"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.planning.parallel import in_parallel
from interlace.planning.trial import enough
from interlace.planning.tried_plan import PlanTrials, TriedPlan

#: What the part of the rates that is packed for falls by where it does not fit.
_FEWER: Final = 0.97
#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.08
#: Attempts at a cut into pools, then by the packer, and how often the part falls there.
_POOLED, _PACKED, _STEPS = 4, 12, 12
#: A cut that breaks before this part of ``enough`` requests is no near miss: it uses up patience,
#: the more the sooner.
_SOON, _PATIENCE = 0.8, 1.5

#: Proposes a cut in which models count for so much; ``None`` if they do not fit.
Proposal = Callable[[Mapping[str, float]], Plan | None]


@dataclass(frozen=True)
class Narrowing:
    """Cuts for the models that can be served; a ``current`` plan is moved little."""

    trials: PlanTrials
    current: Plan
    _tried: dict[int, TriedPlan | None] = field(default_factory=dict)

    def fewest(self, gpus: int, least: int) -> TriedPlan | None:
        """The fewest accelerators below ``gpus``, from ``least`` up, of which a cut is kept."""
        cuts = (self._cut(count) for count in range(max(1, least), gpus))
        return next(filter(None, cuts), None)

    def pooled(self, gpus: int) -> TriedPlan | None:
        """So many accelerators cut into pools that keep every promise, tried once."""
        if gpus not in self._tried:
            fleet = uniform_fleet(self.trials.scenario.gpu, gpus)
            profiles = self.trials.scenario.busy_profiles
            pools = FluidPools(self._wanted, fleet, profiles, self.current)
            self._tried[gpus] = self._kept(pools.plan, _POOLED, fleet)
        return self._tried[gpus]

    def _cut(self, gpus: int) -> TriedPlan | None:
        """So many accelerators cut into pools, or as the packer cuts them for the largest part of
        the rates that it serves there, if that keeps every promise."""
        fleet = uniform_fleet(self.trials.scenario.gpu, gpus)
        packing = _PartPacking(self, fleet)
        return self.pooled(gpus) or self._kept(packing.plan, _PACKED, fleet)

    def _kept(self, proposal: Proposal, attempts: int, fleet: Fleet) -> TriedPlan | None:
        """The first proposed cut that keeps every promise.

        Models whose promise breaks count for more in the next attempt, and for the more the
        oftener; where they have the same hosts again, it is not tried that it breaks.
        """
        weight = {one.model: 1.0 for one in self._wanted}
        often = dict.fromkeys(weight, 0)
        broken: list[TriedPlan] = []
        soon, patience = _SOON * enough(self.trials.scenario), _PATIENCE
        for _ in range(attempts):
            proposed = proposal(weight) if weight else None
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
            for model in found.missed:
                often[model] += 1
                weight[model] *= _MORE ** often[model]
        return None

    @cached_property
    def _wanted(self) -> Sequence[Demand]:
        hopeless = self.trials.hopeless
        demand = self.trials.scenario.demand
        return [one for one in demand if one.rows_per_s > 0 and one.model not in hopeless]


@dataclass(slots=True, eq=False)
class _PartPacking:
    """Rates packed on some accelerators: the largest part of them that fits."""

    asked: Narrowing
    fleet: Fleet
    step: int | None = None

    def plan(self, weight: Mapping[str, float]) -> Plan | None:
        """The packer's plan; after the first no larger part is tried than the last."""
        if self.step is None and self._packed(_STEPS, weight).underserved:
            return None
        steps = range(self.step or 0, _STEPS + 1)
        cores = self.asked.trials.cores
        tried = (self._first(steps[at : at + cores], weight) for at in range(0, len(steps), cores))
        found = next(filter(None, tried), None)
        if found is None:
            return None
        self.step, plan = found
        said = (
            f"on {len(self.fleet.gpus)} accelerators the packer promises {_FEWER**self.step:.0%} "
            "of the rates, the trial all of them"
        )
        return replace(plan, notes=(said,))

    def _first(self, steps: Sequence[int], weight: Mapping[str, float]) -> tuple[int, Plan] | None:
        """The first of these steps at which the rates fit, all packed at once."""
        costs, cores = [1.0] * len(steps), self.asked.trials.cores
        plans = in_parallel(lambda step: self._packed(step, weight), steps, costs, cores)
        fitting = (one for one in zip(steps, plans, strict=True) if not one[1].underserved)
        return next(fitting, None)

    def _packed(self, step: int, weight: Mapping[str, float]) -> Plan:
        known = self.asked.trials.scenario
        asked = [
            replace(one, rows_per_s=one.rows_per_s * _FEWER**step * weight[one.model])
            for one in known.demand
            if one.model in weight
        ]
        packer = self.asked.trials.system.packer
        return packer(asked, self.fleet, known.busy_profiles, self.asked.current)


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
