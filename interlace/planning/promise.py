"""The plan that is told: the packer's answer tried in the engine, widened or narrowed by it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Plan
from interlace.packing.lending import with_guests
from interlace.packing.widening import widened
from interlace.perf.latency import surface
from interlace.planning.scenario import Scenario
from interlace.planning.trial import PlanTrial, enough, try_plan
from interlace.policy.base import System
from interlace.policy.fewest import fewest

#: What the part of the rates that is packed for falls by where it does not fit, and how often.
_FEWER, _STEPS = 0.97, 12
#: Steps that are tried first: by the third most fit that do at all.
_LIKELY: Final = (3, 6, _STEPS)
#: How much more a model counts in the next attempt at a cut, after its promise broke.
_MORE: Final = 1.05
#: How many times as long the trial is that confirms a cut, and its first seed.
_LONGER, _OTHER_SEED = 5, 100
_ATTEMPTS: Final = 12
#: Factors on the rates of models whose promise broke, one after the other.
_INFLATED: Final = (1.05, 1.15, 1.35, 1.8)
#: Parts of the rates of models whose promise breaks that are added to a current plan.
_EXTRA: Final = (0.15, 0.3, 0.6)
#: Standard errors by which a plan must keep what its packer would not promise.
_SURE: Final = 1.5
#: And beyond which one that is told is not tried on.
_MISSED: Final = 3.0
#: Models beyond which only a sample is tried, so that nothing is narrowed by it.
_MOST_MODELS: Final = 24


@dataclass(frozen=True, slots=True)
class TriedPlan:
    """A plan on its accelerators, and what its trial showed."""

    plan: Plan
    fleet: Fleet
    trial: PlanTrial

    @property
    def kept(self) -> bool:
        """True if all is served, and nobody's promise broke."""
        return not self.plan.underserved and not self.trial.broken

    @property
    def gpus(self) -> int:
        """Accelerators in use."""
        return len({part.gpu for part in self.plan.partitions})


def kept_plan(
    scenario: Scenario, system: System, start: int = 1, current: Plan | None = None
) -> TriedPlan:
    """The fewest accelerators, from ``start`` up, on which the engine keeps every promise.

    What a system's packer says is played by its dispatcher. A system that is ``tried`` goes on
    from there: where a model breaks its promise, what shares are idle are given away, then the
    models that broke it are planned for more than they ask; where all is kept, or accelerators
    are short, fewer are cut for the largest part of the rates that the packer serves on them, for
    as long as that keeps every promise, too. Deterministic, and the same for every limit on the
    accelerators that does not bind.

    Of as many accelerators a ``current`` plan is preferred that keeps every promise, or does with
    further partitions for the models whose promise it breaks.
    """
    search = _Search(scenario, system, start, current or Plan())
    found = search.fewest()
    stays = (one for one in search.standing(found.gpus) if one.kept and one.gpus <= found.gpus)
    return next(stays, found)


@dataclass(frozen=True, slots=True)
class _Search:
    """Plans of one scenario, tried."""

    scenario: Scenario
    system: System
    start: int
    current: Plan

    def fewest(self) -> TriedPlan:
        """The packer's answer, or what is better of what its trial leads to."""
        plan, fleet = self.packed({})
        if not self.system.tried or len(self.scenario.demand) > _MOST_MODELS:
            return self.tried(plan, fleet)
        gpus = len(fleet.gpus)
        cut = self.narrower(plan, gpus) if self._complete(plan) else None
        if cut is not None:
            return cut
        found = self.tried(plan, fleet)
        if found.trial.broken and not plan.underserved:
            found = next((one for one in self.wider(found) if one.kept), found)
        if found.kept:  # perhaps on more accelerators than the packer asked for
            return self.narrower(found.plan, found.gpus, gpus) or found
        short = found.gpus >= self.scenario.limit
        return (self.narrower(plan, self.scenario.limit + 1) if short else None) or found

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
            stays = self.tried(self._as_asked(replace(self.current, partitions=parts)), there)
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
                yield self.tried(self._as_asked(both), there)

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
        return self._as_asked(plan) if factors else plan, fleet

    def wider(self, broken: TriedPlan) -> Iterator[TriedPlan]:
        """Idle shares given away; then more and more for those whose promise broke."""
        yield self.tried(self._spread(broken.plan, broken.fleet), broken.fleet)
        factors: dict[str, float] = {}
        tried = broken
        for factor in _INFLATED:
            factors |= dict.fromkeys(tried.trial.broken, factor)
            tried = self.tried(*self.packed(factors))
            yield tried
            yield self.tried(self._spread(tried.plan, tried.fleet), tried.fleet)

    def narrower(self, before: Plan, gpus: int, least: int = 1) -> TriedPlan | None:
        """A cut of fewer than ``gpus`` accelerators, of the fewest down to ``least``, if any."""
        found: TriedPlan | None = None
        for count in range(gpus - 1, max(least, self.start) - 1, -1):
            cut = self.cut(count, before)
            if cut is None:
                break
            found = cut
        return found

    def cut(self, gpus: int, before: Plan) -> TriedPlan | None:
        """So many accelerators, packed for a part of the rates, that keep every promise.

        The part is the largest that the packer serves on them. Models whose promise breaks count
        for more in the next attempt. What cannot be served is left out as ``before``.
        """
        fleet = uniform_fleet(self.scenario.gpu, gpus)
        hopeless = self._hopeless()
        demand = [one for one in self.scenario.demand if one.model not in hopeless]
        weight = dict.fromkeys((one.model for one in demand), 1.0)

        def packed(step: int) -> Plan:
            part = _FEWER**step
            asked = [replace(d, rows_per_s=d.rows_per_s * part * weight[d.model]) for d in demand]
            return self.system.packer(asked, fleet, self.scenario.busy_profiles, self.current)

        plans: dict[int, Plan] = {}

        def fits(step: int) -> bool:
            plans[step] = packed(step)
            return not plans[step].underserved

        step = _first(_LIKELY, fits)
        if step is None:
            return None
        plan = plans[step]
        left = {m: r for m, r in before.unserved_rows_per_s.items() if m in hopeless}
        attempts = 0
        tried: Hashable = None
        short: set[str] = set()
        while attempts < _ATTEMPTS:
            spread = self._spread(plan, fleet)
            if _alike(spread) != tried:
                attempts, tried = attempts + 1, _alike(spread)
                said = (
                    f"on {gpus} accelerators the packer promises {_FEWER**step:.0%} of the rates, "
                    "the trial all of them",
                )
                plan = replace(spread, unserved_rows_per_s=left, reasons=before.reasons, notes=said)
                found = self.tried(plan, fleet, _SURE)
                if not found.trial.short:
                    found = self.confirmed(found)
                short = {*found.trial.short, *found.trial.broken}
                if not short:
                    return found
                if len(short) > max(2, len(demand) / 2):
                    return None  # it is not one model or another that has too little
            for model in short:
                weight[model] *= _MORE
            plan = packed(step)
            while plan.underserved and step < _STEPS:
                step += 1
                plan = packed(step)
            if plan.underserved:
                return None
        return None

    def confirmed(self, found: TriedPlan) -> TriedPlan:
        """The plan after a longer trial of other seeds: it was chosen for how the first went."""
        requests = _LONGER * enough(self.scenario)
        trial = try_plan(
            found.plan, found.fleet, self.scenario, self.system, requests, _OTHER_SEED, errors=0.0
        )
        return replace(found, trial=trial)

    def tried(self, plan: Plan, fleet: Fleet, errors: float = -_MISSED) -> TriedPlan:
        """The plan after a trial that ends once a promise cannot be kept by so many ``errors``."""
        used = {part.gpu for part in plan.partitions}
        there = Fleet(tuple(gpu for gpu in fleet.gpus if gpu.id in used) or fleet.gpus[:1])
        trial = try_plan(plan, there, self.scenario, self.system, errors=errors)
        return TriedPlan(plan, there, trial)

    def _complete(self, plan: Plan) -> bool:
        """True if all is served that can be."""
        return plan.underserved <= self._hopeless()

    def _spread(self, plan: Plan, fleet: Fleet) -> Plan:
        """The plan with nothing left idle: wider partitions, and guests."""
        profiles = self.scenario.busy_profiles
        wide = widened(plan, fleet, profiles)
        return self._as_asked(with_guests(wide, self.scenario.demand, fleet, profiles))

    def _as_asked(self, plan: Plan) -> Plan:
        """The plan with the rates that are asked for, in the proportions of its own."""
        planned: dict[str, float] = {}
        for slot in (s for p in plan.partitions for s in p.slots):
            planned[slot.model] = planned.get(slot.model, 0.0) + slot.rows_per_s
        rates = {one.model: one.rows_per_s for one in self.scenario.demand}
        factor = {m: rates[m] / rate for m, rate in planned.items() if rate > 0}
        parts = tuple(
            replace(
                part,
                slots=tuple(
                    replace(s, rows_per_s=s.rows_per_s * factor.get(s.model, 1.0))
                    for s in part.slots
                ),
            )
            for part in plan.partitions
        )
        return replace(plan, partitions=parts)

    def _hopeless(self) -> set[str]:
        """Models that are late even alone on a whole accelerator, or that nothing is known of."""
        known = self.scenario.busy_profiles
        return {
            one.model
            for one in self.scenario.demand
            if one.model not in known
            or not known[one.model].points
            or surface(known[one.model]).latency_ms(1, 100) > one.slo_ms
        }


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
