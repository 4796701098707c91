"""Search for pools, and overlapping lanes, on fewer accelerators than the packer asks for."""

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
#: Headroom from which lanes that overlap are tried.
_CAREFUL: Final = 0.55


@dataclass(frozen=True)
class PoolSearch:
    """Search for plans of pools; most of a ``current`` plan stays."""

    trials: PlanTrials
    current: Plan
    _pooled: dict[int, SimulatedPlan | None] = field(default_factory=dict)
    _overlapped: dict[int, SimulatedPlan | None] = field(default_factory=dict)

    def fewest(self, least: int, most: int) -> SimulatedPlan | None:
        """Return the fewest accelerators, from ``least`` to ``most``, that keep every SLO.

        Pools are tried, then overlapping lanes. The count starts where there is time for all rates.
        It grows by one, after ``_SINGLY`` by steps that double, since a plan that keeps its SLOs is
        simulated for much longer; then bisection.
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
        """Return the fewest accelerators with time for all rates; else ``most`` + 1."""
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
        """Return the fewest accelerators that keep every SLO by overlapping lanes."""
        counts = range(max(1, least), most + 1)
        return next((found for count in counts if (found := self._overlapping(count))), None)

    def _kept_by(self, gpus: int) -> SimulatedPlan | None:
        return self.pooled(gpus) or self._overlapping(gpus)

    def _overlapping(self, gpus: int) -> SimulatedPlan | None:
        """Return a plan of overlapping lanes that keeps every SLO, simulated once.

        Every model is on every accelerator, so batches meet by chance. The plan's headroom is
        therefore an underestimate: from ``_CAREFUL`` on the simulation decides.
        """
        if gpus not in self._overlapped:
            known, fleet = self.trials.scenario, uniform_fleet(self.trials.scenario.gpu, gpus)
            plan = Overcommitted()(self._wanted, fleet, known.busy_profiles, self.current)
            found = None
            if plan.headroom is not None and plan.headroom >= _CAREFUL:
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
        """Return a plan of pools on so many accelerators that keeps every SLO, or none."""
        if gpus not in self._pooled:
            self._pooled[gpus] = self._kept(self._pools(gpus))
        return self._pooled[gpus]

    def _kept(self, pools: FluidPools) -> SimulatedPlan | None:
        """Return the first plan of pools that keeps every SLO.

        Models that miss their SLO get more weight in the next plan, the more the oftener. A plan in
        which they have the same partitions again is not simulated.
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
            found = next((one for one in broken if self._breaks_alike(plan, one)), None)
            if found is None:
                found = self.trials.confirmed(plan, pools.fleet)
                if not found.missed:
                    return found
                broken.append(found)
                patience -= max(0.0, 1.0 - found.trial.requests / soon)
                if len(self._missed(found)) > max(2, len(weight) / 2) or patience <= 0.0:
                    return None  # it is not one model or another that has too little
                if len(broken) == _TRIED:
                    return None
            for model in self._missed(found):
                often[model] += 1
                weight[model] *= _MORE ** often[model]
        return None

    def _missed(self, found: SimulatedPlan) -> Sequence[str]:
        return self.trials.scenario.members(found.missed)

    def _breaks_alike(self, plan: Plan, broken: SimulatedPlan) -> bool:
        """Whether the models that missed their SLO have the same partitions as before."""
        missed = self._missed(broken)
        return _hosts(plan, missed) == _hosts(broken.plan, missed)

    @cached_property
    def _wanted(self) -> Sequence[Demand]:
        hopeless = self.trials.hopeless
        demand = self.trials.scenario.demand
        return [one for one in demand if one.rows_per_s > 0 and one.model not in hopeless]


def _hosts(plan: Plan, models: Collection[str]) -> Counter[Hashable]:
    """The partitions of these models, ignoring rates."""
    return Counter(
        (part.share_pct, frozenset((s.model, s.batch, s.guest) for s in part.slots))
        for part in plan.partitions
        if any(slot.model in models for slot in part.slots)
    )
