"""The plan that is told: the packer's answer tried in the engine, widened or narrowed by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Plan
from interlace.planning.mending import mended
from interlace.planning.narrowing import Narrowing
from interlace.planning.scenario import Scenario
from interlace.planning.tried_plan import AS_ASKED, PlanTrials, TriedPlan
from interlace.policy.base import System
from interlace.policy.fewest import fewest

#: Factors on the rates of models whose promise broke, one after the other.
_INFLATED: Final = (1.05, 1.15, 1.35, 1.8)
#: Parts of the rates of models whose promise breaks that are added to a current plan.
_EXTRA: Final = (0.15, 0.3, 0.6)
#: Models beyond which only a sample is tried: hosts are added, and nothing is narrowed by it.
_MOST_MODELS: Final = 60


def kept_plan(
    scenario: Scenario,
    system: System,
    start: int = 1,
    current: Plan | None = None,
    cores: int = 1,
) -> TriedPlan:
    """The fewest accelerators, from ``start`` up, on which the engine keeps every promise.

    What a system's packer says is played by its dispatcher. A system that is ``tried`` goes on
    from there: where a model breaks its promise, what shares are idle are given away, then the
    models that broke it are planned for more than they ask; where all is kept, or accelerators
    are short, fewer are cut into pools, for as long as that keeps every promise, too.
    Deterministic, and the same for every limit on the accelerators that does not bind, and for
    every number of ``cores`` that trials run on.

    Of as many accelerators a ``current`` plan is preferred that keeps every promise, or does with
    further partitions for the models whose promise it breaks.
    """
    search = _Search(PlanTrials(scenario, system, cores), start, current or Plan())
    found = search.fewest()
    stays = (one for one in search.standing(found.gpus) if one.kept and one.gpus <= found.gpus)
    return next(stays, found)


@dataclass(frozen=True, slots=True)
class _Search:
    """Plans of one scenario, tried."""

    trials: PlanTrials
    start: int
    current: Plan

    @property
    def scenario(self) -> Scenario:
        return self.trials.scenario

    @property
    def system(self) -> System:
        return self.trials.system

    def fewest(self) -> TriedPlan:
        """The fewest accelerators that keep every promise; else what keeps most of it."""
        if not self.system.tried:
            return self.trials.tried(*self.packed({}))
        if len(self.scenario.demand) > _MOST_MODELS:
            return mended(self.trials.tried(*self.packed({})), self.trials)
        narrowing, limit = Narrowing(self.trials, self.current), self.scenario.limit
        able = not self.trials.hopeless and self.start <= limit
        first = narrowing.pooled(self.start) if able else None
        if first is not None:
            return first
        plan, fleet = self.packed({})
        complete = self.trials.complete(plan)
        alike = not self.current.partitions  # as many in pools have more to spare
        most = min(limit, len(fleet.gpus) + alike - 1) if complete else limit
        found = narrowing.fewest(self.start, most)
        if found is None:
            packed = self.trials.confirmed(plan, fleet)
            found = self.repaired(packed) if complete else packed
            if found.missed and most < limit:
                found = narrowing.fewest(most + 1, limit) or found
        fewer = narrowing.overlapped(self.start, limit if found.missed else found.gpus - 1)
        found = fewer or found
        if found.plan is not plan:
            found = _without(found, plan)
        return (self.whole() if found.plan.underserved else None) or found

    def repaired(self, found: TriedPlan) -> TriedPlan:
        """The packer's plan, or a wider one where it breaks a promise that the wider one keeps."""
        if not found.trial.broken or found.plan.underserved:
            return self.at_the_load_asked(found) if found.trial.broken else found
        kept = next((one for one in self.wider(found) if one.kept), None)
        return kept or self.at_the_load_asked(found)

    def at_the_load_asked(self, found: TriedPlan) -> TriedPlan:
        """A plan that broke at more load than is asked for, tried at what is."""
        return self.trials.tried(found.plan, found.fleet) if found.trial.load > 1.0 else found

    def whole(self) -> TriedPlan | None:
        """All that there is, cut as the system cuts a fleet that it serves on, if that is kept.

        A planner promises as much as it can of what its packer does not promise in full.
        """
        known, there = self.scenario, uniform_fleet(self.scenario.gpu, self.scenario.limit)
        plan = self.system.planner(known.demand, there, known.busy_profiles, self.current)
        placed = {slot.model for part in plan.partitions for slot in part.slots}
        if any(one.rows_per_s > 0 and one.model not in placed for one in known.demand):
            return None
        whole = replace(plan, unserved_rows_per_s={}, reasons={})
        found = self.trials.confirmed(self.trials.as_asked(whole), there, AS_ASKED)
        return None if found.missed else found

    def standing(self, most: int) -> Iterator[TriedPlan]:
        """The current plan at the rates that are asked for; then with more on ``most`` GPUs."""
        wanted = {one.model: one for one in self.scenario.demand if one.rows_per_s > 0}
        there = uniform_fleet(self.scenario.gpu, self.scenario.limit)
        parts = tuple(
            replace(part, slots=slots)
            for part in self.current.partitions
            if (slots := tuple(slot for slot in part.slots if slot.model in wanted))
        )
        used = {part.gpu for part in parts}
        free = [gpu for gpu in there.gpus if gpu.id not in used][: max(0, most - len(used))]
        if not parts or not used <= {gpu.id for gpu in there.gpus}:
            return
        new = wanted.keys() - {slot.model for part in parts for slot in part.slots}
        short: tuple[str, ...] = ()
        if not new:
            stays = self.stands(replace(self.current, partitions=parts), there)
            yield stays
            short = stays.trial.broken
        for extra in _EXTRA if free else ():
            asked = [
                replace(one, rows_per_s=one.rows_per_s * (1.0 if name in new else extra))
                for name, one in wanted.items()
                if name in new or name in short
            ]
            added = self.system.packer(
                asked, Fleet(tuple(free)), self.scenario.busy_profiles, Plan()
            )
            if not added.underserved:
                both = replace(self.current, partitions=(*parts, *added.partitions))
                yield self.stands(both, there)

    def stands(self, plan: Plan, fleet: Fleet) -> TriedPlan:
        """A plan that stands already, tried as it is asked: it moves nothing."""
        return self.trials.confirmed(self.trials.as_asked(plan), fleet, AS_ASKED)

    def packed(self, factors: Mapping[str, float]) -> tuple[Plan, Fleet]:
        """The packer's answer, for some models to so many times their rates."""
        asked = [
            replace(d, rows_per_s=d.rows_per_s * factors.get(d.model, 1.0))
            for d in self.scenario.demand
        ]
        known = self.scenario
        plan, fleet = fewest(
            self.system.packer,
            asked,
            known.gpu,
            known.limit,
            known.busy_profiles,
            self.current,
            self.start,
        )
        return self.trials.as_asked(plan) if factors else plan, fleet

    def wider(self, broken: TriedPlan) -> Iterator[TriedPlan]:
        """Idle shares given away; then more and more for those whose promise broke."""
        yield self.trials.confirmed(self.trials.spread(broken.plan, broken.fleet), broken.fleet)
        factors: dict[str, float] = {}
        tried = broken
        for factor in _INFLATED:
            factors |= dict.fromkeys(tried.trial.broken, factor)
            tried = self.trials.confirmed(*self.packed(factors))
            yield tried
            yield self.trials.confirmed(self.trials.spread(tried.plan, tried.fleet), tried.fleet)


def _without(cut: TriedPlan, plan: Plan) -> TriedPlan:
    """A cut for the models that can be served, with what ``plan`` says of the others."""
    lost = {m: r for m, r in plan.unserved_rows_per_s.items() if m not in cut.trial.models}
    why = {model: plan.reasons[model] for model in lost if model in plan.reasons}
    told = replace(cut.plan, unserved_rows_per_s=lost, reasons=why)
    return replace(cut, plan=told)
