"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.planning.trial import enough
from interlace.planning.tried_plan import PlanTrials, TriedPlan

#: What the part of the rates that is packed for falls by where it does not fit, and how often.
_FEWER, _STEPS = 0.97, 12
#: Steps that are tried first: by the third most fit that do at all.
_LIKELY: Final = (3, 6, _STEPS)
#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.05
#: Attempts at a cut into pools, then by the packer.
_POOLED, _PACKED = 4, 12
#: So many attempts one after the other that each break in this part of a trial are no near miss.
_HOPELESS, _SOON = 3, 1 / 3

#: Proposes a cut in which models count for so much; ``None`` if they do not fit.
Proposal = Callable[[Mapping[str, float]], Plan | None]
#: Cuts to try a second time; the models whose promise broke then are sent back.
_Cuts = Generator[TriedPlan, frozenset[str], None]


@dataclass(frozen=True)
class Narrowing:
    """Cuts of fewer accelerators than ``before`` has.

    What cannot be served is left out as ``before``; a ``current`` plan is moved little.
    """

    trials: PlanTrials
    before: Plan
    current: Plan

    def fewest(self, gpus: int, least: int) -> TriedPlan | None:
        """A cut of fewer than ``gpus`` accelerators that keeps every promise, if there is one.

        One fewer each time, down to ``least``, as long as a first trial keeps that; then the fewest
        of which a second one does.
        """
        likely: list[tuple[_Cuts, TriedPlan]] = []
        for count in range(gpus - 1, max(1, least) - 1, -1):
            cuts = self._cuts(count)
            found = next(cuts, None)
            if found is None:
                break
            likely.append((cuts, found))
        kept = (self._kept(cuts, found) for cuts, found in reversed(likely))
        return next(filter(None, kept), None)

    def pooled(self, gpus: int) -> TriedPlan | None:
        """So many accelerators cut into pools that keep every promise."""
        cuts = self._pooled(uniform_fleet(self.trials.scenario.gpu, gpus))
        return self._kept(cuts, next(cuts, None))

    def _cuts(self, gpus: int) -> _Cuts:
        """So many accelerators cut into pools, then as the packer cuts them for the largest part
        of the rates that it serves there."""
        fleet = uniform_fleet(self.trials.scenario.gpu, gpus)
        yield from self._pooled(fleet)
        yield from self._likely(_PartPacking(self, fleet).plan, _PACKED, fleet)

    def _pooled(self, fleet: Fleet) -> _Cuts:
        profiles = self.trials.scenario.busy_profiles
        pools = FluidPools(self._wanted, fleet, profiles, self.current)
        yield from self._likely(pools.plan, _POOLED, fleet)

    def _likely(self, proposal: Proposal, attempts: int, fleet: Fleet) -> _Cuts:
        """Cuts that keep every promise in a first trial.

        Models whose promise breaks, in that or in a second trial, count for more in the next
        attempt, and for the more the oftener; a plan that is as one before is not tried again.
        """
        weight = {one.model: 1.0 for one in self._wanted}
        often = dict.fromkeys(weight, 0)
        seen: dict[Hashable, frozenset[str]] = {}
        soon, hopeless = _SOON * enough(self.trials.scenario), 0
        for _ in range(attempts):
            proposed = proposal(weight) if weight else None
            if proposed is None:
                return
            plan = self._told(proposed, fleet)
            alike = _alike(plan)
            if alike not in seen:
                found = self.trials.likely(plan, fleet)
                hopeless = hopeless + 1 if found.missed and found.trial.requests < soon else 0
                seen[alike] = found.missed or (yield found)
            short = seen[alike]
            if len(short) > max(2, len(weight) / 2) or hopeless == _HOPELESS:
                return  # it is not one model or another that has too little
            for model in short:
                often[model] += 1
                weight[model] *= _MORE ** often[model]

    def _kept(self, cuts: _Cuts, found: TriedPlan | None) -> TriedPlan | None:
        """The first of the cuts from ``found`` on that a second trial keeps, too."""
        while found is not None:
            again = self.trials.again(found)
            if not again.missed:
                return again
            try:
                found = cuts.send(again.missed)
            except StopIteration:
                return None
        return None

    @cached_property
    def _wanted(self) -> Sequence[Demand]:
        hopeless = self.trials.hopeless
        demand = self.trials.scenario.demand
        return [one for one in demand if one.rows_per_s > 0 and one.model not in hopeless]

    def _told(self, proposed: Plan, fleet: Fleet) -> Plan:
        """The plan with nothing left idle, for the rates that are asked."""
        lost = self.before.unserved_rows_per_s
        return replace(
            self.trials.spread(proposed, fleet),
            unserved_rows_per_s={m: r for m, r in lost.items() if m in self.trials.hopeless},
            reasons=self.before.reasons,
        )


@dataclass(slots=True, eq=False)
class _PartPacking:
    """Rates packed on some accelerators: the largest part of them that fits."""

    asked: Narrowing
    fleet: Fleet
    step: int | None = None

    def plan(self, weight: Mapping[str, float]) -> Plan | None:
        """The packer's plan; after the first no larger part is tried than the last."""
        plans: dict[int, Plan] = {}

        def fits(step: int) -> bool:
            plans[step] = self._packed(step, weight)
            return not plans[step].underserved

        if self.step is None:
            self.step = _first(_LIKELY, fits)
        else:
            self.step = next((s for s in range(self.step, _STEPS + 1) if fits(s)), None)
        if self.step is None:
            return None
        said = (
            f"on {len(self.fleet.gpus)} accelerators the packer promises {_FEWER**self.step:.0%} "
            "of the rates, the trial all of them"
        )
        return replace(plans[self.step], notes=(said,))

    def _packed(self, step: int, weight: Mapping[str, float]) -> Plan:
        known = self.asked.trials.scenario
        asked = [
            replace(one, rows_per_s=one.rows_per_s * _FEWER**step * weight[one.model])
            for one in known.demand
            if one.model in weight
        ]
        packer = self.asked.trials.system.packer
        return packer(asked, self.fleet, known.busy_profiles, self.asked.current)


def _first(likely: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first step that fits, up to the last of ``likely``, between two of which it is bisected;
    what follows a step that fits is taken to fit, too."""
    low = 0
    for high in likely:
        if fits(high):
            break
        low = high + 1
    else:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def _alike(plan: Plan) -> Hashable:
    """What is the same of plans that differ in their rates alone: who is served is the engine's."""
    return tuple(
        (part.gpu, part.share_pct, tuple((s.model, s.batch, s.guest) for s in part.slots))
        for part in plan.partitions
    )
