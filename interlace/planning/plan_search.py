"""Search for the fewest accelerators on which a simulated plan keeps every SLO."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Partition, Plan
from interlace.perf.memory import holds_partitions
from interlace.planning.pool_search import PoolSearch
from interlace.planning.scenario import Scenario
from interlace.planning.simulated_plan import AS_ASKED, OnTrial, PlanTrials, SimulatedPlan
from interlace.policy.base import System
from interlace.policy.fewest import fewest

#: Factors on the rates of models whose promise broke, one after the other.
_INFLATED: Final = (1.05, 1.15, 1.35, 1.8)
#: Parts of the rates of models whose promise breaks that are added to a current plan.
_EXTRA: Final = (0.15, 0.3, 0.6)
#: Models beyond which only a sample is tried: hosts are added, and nothing is narrowed by it.
_MOST_MODELS: Final = 60


def search_plan(
    scenario: Scenario,
    system: System,
    start: int = 1,
    current: Plan | None = None,
    cores: int = 1,
    on_trial: OnTrial = lambda plan, fleet: None,
) -> SimulatedPlan:
    """Return a plan on the fewest accelerators, from ``start`` up, that keeps every SLO.

    Plans are simulated with the system's dispatcher. For a system that is ``tried``, pools are
    tried from ``start`` up, then the packer's plan. If a model misses its SLO there, idle shares
    are given away, then that model is planned for a higher rate. The result does not depend on
    ``cores``, nor on a limit of accelerators that does not bind.

    A ``current`` plan on as many accelerators is preferred if it keeps every SLO, by itself or with
    more partitions for the models that miss theirs.
    """
    trials = PlanTrials(scenario, system, cores, on_trial)
    search = _Search(trials, start, current or Plan())
    found = search.fewest()
    stays = (one for one in search.standing(found.gpus) if one.kept and one.gpus <= found.gpus)
    return next(stays, found)


def given_plan(
    scenario: Scenario, system: System, current: Plan | None = None, cores: int = 1
) -> SimulatedPlan:
    """Plan the scenario's accelerator as the system plans a fleet that it serves on.

    A model without a rate is unserved only if it has no place, and then at a rate of 0.
    """
    there = Fleet((scenario.gpu,))
    made = system.planner(scenario.demand, there, scenario.busy_profiles, current or Plan())
    placed = {slot.model for part in made.partitions for slot in part.slots}
    rates = {one.model: one.rows_per_s for one in scenario.demand}
    unserved = {
        model: rate if rates[model] else 0.0
        for model, rate in made.unserved_rows_per_s.items()
        if rates[model] or model not in placed
    }
    reasons = {model: why for model, why in made.reasons.items() if model in unserved}
    plan = replace(made, unserved_rows_per_s=unserved, reasons=reasons)
    return PlanTrials(scenario, system, cores).tried(plan, there)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for one scenario."""

    trials: PlanTrials
    start: int
    current: Plan

    @property
    def scenario(self) -> Scenario:
        return self.trials.scenario

    @property
    def system(self) -> System:
        return self.trials.system

    def fewest(self) -> SimulatedPlan:
        """Search for the fewest accelerators; return the best plan if none keeps every SLO."""
        if not self.system.tried:
            return self.trials.tried(*self.packed({}))
        if len(self.scenario.demand) > _MOST_MODELS:
            return add_replicas(self.trials.tried(*self.packed({})), self.trials)
        pools, limit = PoolSearch(self.trials, self.current), self.scenario.limit
        able = not self.trials.hopeless and self.start <= limit
        first = pools.pooled(self.start) if able else None
        if first is not None:
            return first
        plan, fleet = self.packed({})
        complete = self.trials.complete(plan)
        alike = not self.current.partitions  # as many in pools have more to spare
        most = min(limit, len(fleet.gpus) + alike - 1) if complete else limit
        found = pools.fewest(self.start, most)
        if found is None:
            packed = self.trials.confirmed(plan, fleet)
            found = self.repaired(packed) if complete else packed
            if found.missed and most < limit:
                found = pools.fewest(most + 1, limit) or found
        fewer = pools.overlapped(self.start, limit if found.missed else found.gpus - 1)
        found = fewer or found
        if found.plan is not plan:
            found = _without(found, plan, self.scenario.members(found.trial.models))
        return (self.whole() if found.plan.underserved else None) or found

    def repaired(self, found: SimulatedPlan) -> SimulatedPlan:
        """Return the packer's plan, or a wider one that keeps the SLOs which it misses."""
        if not found.trial.broken or found.plan.underserved:
            return self.at_the_load_asked(found) if found.trial.broken else found
        kept = next((one for one in self.wider(found) if one.kept), None)
        return kept or self.at_the_load_asked(found)

    def at_the_load_asked(self, found: SimulatedPlan) -> SimulatedPlan:
        """Simulate a plan that misses SLOs at a higher load at the load asked."""
        return self.trials.tried(found.plan, found.fleet) if found.trial.load > 1.0 else found

    def whole(self) -> SimulatedPlan | None:
        """Return the planner's plan for all accelerators, if it keeps every SLO.

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

    def standing(self, most: int) -> Iterator[SimulatedPlan]:
        """Yield the current plan at the rates asked, then with more on ``most`` GPUs."""
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
            short = self.scenario.members(stays.trial.broken)
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

    def stands(self, plan: Plan, fleet: Fleet) -> SimulatedPlan:
        """Simulate a plan that is in place, at the rates asked."""
        return self.trials.confirmed(self.trials.as_asked(plan), fleet, AS_ASKED)

    def packed(self, factors: Mapping[str, float]) -> tuple[Plan, Fleet]:
        """Return the packer's plan, with the rates of some models multiplied."""
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

    def wider(self, broken: SimulatedPlan) -> Iterator[SimulatedPlan]:
        """Yield plans without idle shares, then plans for higher rates of models that miss."""
        yield self.trials.confirmed(self.trials.spread(broken.plan, broken.fleet), broken.fleet)
        factors: dict[str, float] = {}
        tried = broken
        for factor in _INFLATED:
            factors |= dict.fromkeys(self.scenario.members(tried.trial.broken), factor)
            tried = self.trials.confirmed(*self.packed(factors))
            yield tried
            yield self.trials.confirmed(self.trials.spread(tried.plan, tried.fleet), tried.fleet)


def _without(cut: SimulatedPlan, plan: Plan, tried: Collection[str]) -> SimulatedPlan:
    """Add to a plan of pools what ``plan`` says of the models that cannot be served."""
    lost = {m: r for m, r in plan.unserved_rows_per_s.items() if m not in tried}
    why = {model: plan.reasons[model] for model in lost if model in plan.reasons}
    told = replace(cut.plan, unserved_rows_per_s=lost, reasons=why)
    return replace(cut, plan=told)


#: How often hosts are added, and the part of a pool's hosts that is added each time.
_ROUNDS: Final = 4
_MORE: Final = 0.08


def add_replicas(found: SimulatedPlan, trials: PlanTrials) -> SimulatedPlan:
    """Add partitions for models that miss their SLO, until none does.

    The first simulation of a large plan is a sample. Parts that miss an SLO are simulated again for
    longer; if they still miss it, partitions are added there, and as many parts as got some are
    simulated for the first time. This bounds the time. It also ends if no accelerator is left.
    """
    plan, rounds, added = found.plan, 0, False
    while (broken := found.trial.broken) and not plan.underserved:
        found = trials.tried_again(found, plan, broken, fresh=added)
        still = [model for model in found.trial.broken if model in broken]
        added = bool(still)
        if added:
            members = trials.scenario.members(still)
            more = _with_replicas(plan, members, trials) if rounds < _ROUNDS else None
            if more is None:
                break
            plan, rounds = trials.as_asked(more), rounds + 1
    return found


def _with_replicas(plan: Plan, broken: Sequence[str], trials: PlanTrials) -> Plan | None:
    """Add partitions like those of the models; ``None`` if they do not fit."""
    room = _Room(plan, trials)
    served: set[str] = set()
    for model in broken:
        if model in served:
            continue  # beside one that was worse
        hosts = [p for p in plan.partitions if any(s.model == model for s in p.slots)]
        best = max(hosts, key=lambda p: (_planned(p, model), p.id))
        served |= {slot.model for slot in best.slots}
        for _ in range(ceil(_MORE * len(hosts))):
            if not room.put(best):
                return None
    return replace(plan, partitions=(*plan.partitions, *room.added))


def _planned(part: Partition, model: str) -> float:
    return sum(slot.rows_per_s for slot in part.slots if slot.model == model)


class _Room:
    """Accelerators that have room for partitions: those in use first."""

    def __init__(self, plan: Plan, trials: PlanTrials) -> None:
        self.added: list[Partition] = []
        self._profiles = trials.scenario.busy_profiles
        fleet = uniform_fleet(trials.scenario.gpu, trials.scenario.limit)
        self._here: dict[str, list[Partition]] = {gpu.id: [] for gpu in fleet.gpus}
        self._gpus: Mapping[str, Gpu] = {gpu.id: gpu for gpu in fleet.gpus}
        self._names = {part.id for part in plan.partitions}
        for part in plan.partitions:
            self._here[part.gpu].append(part)

    def put(self, like: Partition) -> bool:
        """Add a partition like that one; false if it fits nowhere."""
        for gpu in self._offered():
            after = [*self._here[gpu.id], like]
            legal = gpu.legal([p.share_pct for p in after])
            if legal and holds_partitions(gpu, after, self._profiles):
                number = len(self._here[gpu.id])
                while (name := f"{gpu.id}:{number}") in self._names:
                    number += 1
                self._names.add(name)
                self.added.append(replace(like, id=name, gpu=gpu.id))
                self._here[gpu.id].append(self.added[-1])
                return True
        return False

    def _offered(self) -> Iterator[Gpu]:
        """Yield accelerators with an idle share, those in use first."""
        idle = [
            (gpu, parts)
            for gpu, parts in self._here.items()
            if sum(p.share_pct for p in parts) < 100
        ]
        for gpu, _ in sorted(idle, key=lambda one: not one[1]):
            yield self._gpus[gpu]
