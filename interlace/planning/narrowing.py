"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.fluid_pools import FluidPools
from interlace.planning.tried_plan import AS_ASKED, WITH_SPARE, PlanTrials, TriedPlan

#: What the part of the rates that is packed for falls by where it does not fit, and how often.
_FEWER, _STEPS = 0.97, 12
#: Steps that are tried first: by the third most fit that do at all.
_LIKELY: Final = (3, 6, _STEPS)
#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.05
#: Attempts at a cut into pools, then by the packer.
_POOLED, _PACKED = 4, 12

#: Proposes a cut in which models count for so much; ``None`` if they do not fit.
Proposal = Callable[[Mapping[str, float]], Plan | None]


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

        One fewer each time, down to ``least``, as long as that goes.
        """
        found: TriedPlan | None = None
        for count in range(gpus - 1, max(1, least) - 1, -1):
            cut = self.cut(count)
            if cut is None:
                break
            found = cut
        return found

    def cut(self, gpus: int) -> TriedPlan | None:
        """So many accelerators that keep every promise.

        Cut into pools, then as the packer cuts them for the largest part of the rates that it
        serves there.
        """
        fleet = uniform_fleet(self.trials.scenario.gpu, gpus)
        packing = _PartPacking(self, fleet)
        return self.pooled(gpus) or self._kept(packing.plan, _PACKED, fleet)

    def pooled(self, gpus: int) -> TriedPlan | None:
        """So many accelerators cut into pools that keep every promise."""
        known = self.trials.scenario
        fleet = uniform_fleet(known.gpu, gpus)
        pools = FluidPools(self._wanted, fleet, known.busy_profiles, self.current)
        return self._kept(pools.plan, _POOLED, fleet)

    def _kept(self, proposal: Proposal, attempts: int, fleet: Fleet) -> TriedPlan | None:
        """The first cut that keeps every promise.

        Models whose promise breaks count for more in the next attempt; a plan that is as one before
        is not tried again.
        """
        how = WITH_SPARE if len(fleet.gpus) < self.trials.scenario.limit else AS_ASKED
        weight = {one.model: 1.0 for one in self._wanted}
        seen: dict[Hashable, frozenset[str]] = {}
        for _ in range(attempts):
            proposed = proposal(weight) if weight else None
            if proposed is None:
                return None
            plan = self._told(proposed, fleet)
            alike = _alike(plan)
            if alike not in seen:
                found = self.trials.confirmed(plan, fleet, how)
                seen[alike] = found.trial.short.union(found.trial.broken)
            short = seen[alike]
            if not short:
                return found
            if len(short) > max(2, len(weight) / 2):
                return None  # it is not one model or another that has too little
            for model in short:
                weight[model] *= _MORE
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
    """What is the same of plans that differ in their rates by a few per cent alone."""
    return tuple(
        (
            part.gpu,
            part.share_pct,
            tuple((s.model, s.batch, s.guest, f"{s.rows_per_s:.2g}") for s in part.slots),
        )
        for part in plan.partitions
    )
