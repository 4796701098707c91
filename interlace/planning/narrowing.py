"""Fewer accelerators than the packer asks for, where a trial shows that they do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Plan
from interlace.planning.tried_plan import AS_ASKED, WITH_SPARE, PlanTrials, TriedPlan

#: What the part of the rates that is packed for falls by where it does not fit, and how often.
_FEWER, _STEPS = 0.97, 12
#: Steps that are tried first: by the third most fit that do at all.
_LIKELY: Final = (3, 6, _STEPS)
#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.05
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Cuts of fewer accelerators than ``before`` has, each packed for a part of the rates.

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
        """So many accelerators, packed for a part of the rates, that keep every promise.

        The part is the largest that the packer serves on them. Models whose promise breaks count
        for more in the next attempt; a plan that is as one before is not tried again.
        """
        packing = _PartPacking(self, uniform_fleet(self.trials.scenario.gpu, gpus))
        if not packing.first():
            return None
        how = WITH_SPARE if gpus < self.trials.scenario.limit else AS_ASKED
        seen: dict[Hashable, frozenset[str]] = {}
        while len(seen) < _ATTEMPTS:
            plan = packing.told()
            alike = _alike(plan)
            if alike not in seen:
                found = self.trials.confirmed(plan, packing.fleet, how)
                seen[alike] = found.trial.short.union(found.trial.broken)
            short = seen[alike]
            if not short:
                return found
            if len(short) > max(2, len(packing.weight) / 2):
                return None  # it is not one model or another that has too little
            if not packing.with_more(short):
                return None
        return None


@dataclass(slots=True, eq=False)
class _PartPacking:
    """Rates packed on some accelerators: a part of them, in which some models count for more."""

    asked: Narrowing
    fleet: Fleet
    weight: dict[str, float] = field(default_factory=dict)
    step: int = 0
    plan: Plan = field(default_factory=Plan)

    def first(self) -> bool:
        """Pack for the largest part that fits; false if none does."""
        trials = self.asked.trials
        names = [one.model for one in trials.scenario.demand if one.model not in trials.hopeless]
        self.weight = dict.fromkeys(names, 1.0)
        plans: dict[int, Plan] = {}

        def fits(step: int) -> bool:
            plans[step] = self._packed(step)
            return not plans[step].underserved

        found = _first(_LIKELY, fits)
        if found is not None:
            self.step, self.plan = found, plans[found]
        return found is not None

    def with_more(self, short: frozenset[str]) -> bool:
        """Pack again with more for those models; false if that does not fit."""
        for model in short:
            self.weight[model] *= _MORE
        for step in range(self.step, _STEPS + 1):
            self.step, self.plan = step, self._packed(step)
            if not self.plan.underserved:
                return True
        return False

    def told(self) -> Plan:
        """The plan with nothing left idle, for the rates that are asked."""
        before, trials = self.asked.before, self.asked.trials
        lost = before.unserved_rows_per_s
        said = (
            f"on {len(self.fleet.gpus)} accelerators the packer promises {_FEWER**self.step:.0%} "
            "of the rates, the trial all of them"
        )
        return replace(
            trials.spread(self.plan, self.fleet),
            unserved_rows_per_s={m: rate for m, rate in lost.items() if m in trials.hopeless},
            reasons=before.reasons,
            notes=(said,),
        )

    def _packed(self, step: int) -> Plan:
        known = self.asked.trials.scenario
        asked = [
            replace(one, rows_per_s=one.rows_per_s * _FEWER**step * self.weight[one.model])
            for one in known.demand
            if one.model in self.weight
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
