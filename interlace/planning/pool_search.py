"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.planning.simulated_plan import PlanTrials, SimulatedPlan
from interlace.planning.trial import enough
from interlace.policy.planners.overcommitted import Overcommitted

#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.08
#: Cuts of so many accelerators that are proposed, and those of them that are tried.
_PROPOSED, _TRIED = 12, 4
#: A cut that breaks before this part of ``enough`` requests is no near miss: it uses up patience,
#: the more the sooner.
_SOON, _PATIENCE = 0.8, 1.5
#: Accelerators that are added one by one.
_SINGLY: Final = 4
#: Headrooms between which lanes that overlap are tried.
_CAREFUL, _AMPLE = 0.55, 4.0


@dataclass(frozen=True)
class PoolSearch:
    """Cuts into pools for the models that can be served; a ``current`` plan is moved little."""

    trials: PlanTrials
    current: Plan
    _pooled: dict[int, SimulatedPlan | None] = field(default_factory=dict)
    _overlapped: dict[int, SimulatedPlan | None] = field(default_factory=dict)

    def fewest(self, least: int, most: int) -> SimulatedPlan | None:
        """The fewest accelerators, from ``least`` to ``most``, that keep every promise.

        In pools, else by lanes that overlap. From the fewest with time for all rates up, by one and
        after ``_SINGLY`` by steps that double, since what is kept is tried for much longer than
        what is not; between the last that fails and the first that is kept by bisection.
        """
        count = first = self._with_time(max(1, least), most)
        failed, step, kept = count - 1, 1, None
        while kept is None and count <= most:
            kept = self._kept_by(count)
            if kept is None:
                step = step if count < first + _SINGLY else 2 * step
                failed, count = count, min(count + step, max(most, count + 1))
        while kept is not None and count - failed > 1:
            middle = (failed + count) // 2
            fewer = self._kept_by(middle)
            kept, count = (fewer, middle) if fewer else (kept, count)
            failed = failed if fewer else middle
        return kept

    def _with_time(self, least: int, most: int) -> int:
        """The fewest accelerators, in that range, with time for all rates; else ``most`` + 1."""
        evenly = {one.model: 1.0 for one in self._wanted}
        low, high, step = least, least, 1
        while high <= most and self._pools(high).plan(evenly) is None:
            low, high, step = high + 1, high + step, 2 * step
        high = min(high, most + 1)
        while low < high:
            middle = (low + high) // 2
            if self._pools(middle).plan(evenly) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def overlapped(self, least: int, most: int) -> SimulatedPlan | None:
        """The fewest accelerators, in that range, that keep every promise by overlapping lanes."""
        counts = range(max(1, least), most + 1)
        return next((found for count in counts if (found := self._overlapping(count))), None)

    def _kept_by(self, gpus: int) -> SimulatedPlan | None:
        return self.pooled(gpus) or self._overlapping(gpus)

    def _overlapping(self, gpus: int) -> SimulatedPlan | None:
        """So many accelerators whose lanes overlap that keep every promise, tried once.

        Every model is on every accelerator, so batches meet by chance, not by a plan: what such a
        plan says of its headroom is careful, and trials decide from ``_CAREFUL`` on. With
        ``_AMPLE`` a cut has so much to spare that it is kept, too.
        """
        if gpus not in self._overlapped:
            known, fleet = self.trials.scenario, uniform_fleet(self.trials.scenario.gpu, gpus)
            plan = Overcommitted()(self._wanted, fleet, known.busy_profiles, self.current)
            found = None
            if plan.headroom is not None and _CAREFUL <= plan.headroom < _AMPLE:
                whole = replace(plan, unserved_rows_per_s={}, reasons={})
                tried = self.trials.confirmed(self.trials.as_asked(whole), fleet)
                found = None if tried.missed else tried
            self._overlapped[gpus] = found
        return self._overlapped[gpus]

    def _pools(self, gpus: int) -> FluidPools:
        known = self.trials.scenario
        fleet = uniform_fleet(known.gpu, gpus)
        return FluidPools(self._wanted, fleet, known.busy_profiles, self.current)

    def pooled(self, gpus: int) -> SimulatedPlan | None:
        """So many accelerators cut into pools that keep every promise, tried once."""
        if gpus not in self._pooled:
            self._pooled[gpus] = self._kept(self._pools(gpus))
        return self._pooled[gpus]

    def _kept(self, pools: FluidPools) -> SimulatedPlan | None:
        """The first cut that keeps every promise.

        Models whose promise breaks count for more in the next attempt, and for the more the
        oftener; where they have the same hosts again, it is not tried that it breaks.
        """
        weight = {one.model: 1.0 for one in self._wanted}
        often = dict.fromkeys(weight, 0)
        broken: list[SimulatedPlan] = []
        soon, patience = _SOON * enough(self.trials.scenario), _PATIENCE
        for _ in range(_PROPOSED):
            proposed = pools.plan(weight) if weight else None
            if proposed is None:
                return None
            plan = self.trials.spread(replace(proposed, headroom=None), pools.fleet)
            found = next((one for one in broken if _breaks_alike(plan, one)), None)
            if found is None:
                found = self.trials.confirmed(plan, pools.fleet)
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


def _breaks_alike(plan: Plan, broken: SimulatedPlan) -> bool:
    """True if models whose promise broke have the same hosts, each with the same neighbours."""
    return _hosts(plan, broken.missed) == _hosts(broken.plan, broken.missed)


def _hosts(plan: Plan, models: Collection[str]) -> Counter[Hashable]:
    """The partitions of these models, but for rates: who is served is the engine's to say."""
    return Counter(
        (part.share_pct, frozenset((s.model, s.batch, s.guest) for s in part.slots))
        for part in plan.partitions
        if any(slot.model in models for slot in part.slots)
    )
