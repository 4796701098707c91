"""Simulated plans of one scenario, and what is done to a plan before its simulation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Final, NamedTuple

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.packing.lending import widened, with_guests
from interlace.perf.latency import surface
from interlace.planning.scenario import Scenario
from interlace.planning.trial import PlanTrial, enough, tried_apart, try_plan
from interlace.policy.base import System

#: The first seed of trials of a plan that was chosen for how a first trial went.
_OTHER_SEED: Final = 100
#: The first seed of the last trial of a plan.
_LAST_SEED: Final = 10_000
#: Requests of such a trial for the sake of its time.
_MOST: Final = 500_000
#: Requests of a model that comes in bursts, were they independent, that tell something of it.
_LEAST: Final = 200


#: Hears of a plan and its accelerators.
OnTrial = Callable[[Plan, Fleet], None]


class Confirmation(NamedTuple):
    """How long a plan is simulated before it is returned.

    At ``load`` times the rates asked, with ``longer`` times ``enough`` requests, for at least
    ``least_s`` of virtual time: bursts are rare and long.
    """

    load: float
    longer: int
    least_s: float


#: Where accelerators are left. Near its limit a plan breaks promises for seconds, and seldom: a
#: little more load brings that out sooner than a long trial does.
WITH_SPARE: Final = Confirmation(1.05, 2, 10.0)
#: Where all that there are must do.
AS_ASKED: Final = Confirmation(1.0, 5, 30.0)


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """A plan on its accelerators, and the result of its simulation."""

    plan: Plan
    fleet: Fleet
    trial: PlanTrial

    @property
    def kept(self) -> bool:
        """Whether all is served and every SLO is kept."""
        return not self.plan.underserved and not self.trial.broken

    @property
    def missed(self) -> frozenset[str]:
        """Models that missed their SLO, or lost more requests than the trial allows."""
        return self.trial.short.union(self.trial.broken)

    @property
    def gpus(self) -> int:
        """Accelerators in use."""
        return len({part.gpu for part in self.plan.partitions})


@dataclass(frozen=True)
class PlanTrials:
    """Simulations of plans for one scenario and system, on so many cores at once.

    ``on_trial`` is called with each plan before it is tried.
    """

    scenario: Scenario
    system: System
    cores: int = 1
    on_trial: OnTrial = lambda plan, fleet: None
    _known: dict[Hashable, PlanTrial] = field(default_factory=dict, repr=False)

    def confirmed(self, plan: Plan, fleet: Fleet, how: Confirmation | None = None) -> SimulatedPlan:
        """Simulate a plan with new seeds at a higher load than is asked for.

        A plan that nearly keeps its SLOs there is simulated for longer at the load asked. A plan
        that keeps them is simulated again for longer if bursts are rarer, and a last time with a
        seed that no choice between plans depends on; that result is returned.
        """
        there = _in_use(plan, fleet)
        self.on_trial(plan, there)
        found = self._confirmed(plan, there, how or WITH_SPARE)
        if how is None and found.missed and found.trial.nearly(found.missed):
            how = AS_ASKED
            found = self._confirmed(plan, there, how)
        how = how or WITH_SPARE
        bursts_s = max(map(_bursts_s, self.scenario.promises), default=0.0)
        if bursts_s > how.least_s and not found.missed:
            how = how._replace(least_s=bursts_s)
            found = self._confirmed(plan, there, how)
        if not found.missed:
            found = self._confirmed(plan, there, how._replace(load=1.0), _LAST_SEED)
        return found

    def _confirmed(
        self, plan: Plan, there: Fleet, how: Confirmation, seed: int = _OTHER_SEED
    ) -> SimulatedPlan:
        known, (load, longer, least_s) = self.scenario, how
        rate_rps = load * sum(one.rows_per_s for one in known.promises)
        requests = max(longer * enough(known), min(ceil(least_s * rate_rps), _MOST))
        asked = plan.partitions, plan.overlapping, how, seed
        if asked not in self._known:  # plans for more load are often the same
            self._known[asked] = try_plan(
                plan, there, known, self.system, requests, seed, 0.0, least_s, load, self.cores
            )
        return SimulatedPlan(plan, there, self._known[asked])

    def tried(self, plan: Plan, fleet: Fleet) -> SimulatedPlan:
        """Simulate a plan until an SLO is clearly missed."""
        there = _in_use(plan, fleet)
        self.on_trial(plan, there)
        trial = try_plan(plan, there, self.scenario, self.system, cores=self.cores)
        return SimulatedPlan(plan, there, trial)

    def tried_again(
        self, before: SimulatedPlan, plan: Plan, names: Collection[str], fresh: bool
    ) -> SimulatedPlan:
        """Simulate again the parts of a plan that host these models, or members of these apps.

        ``before`` is the result for the same plan; it stays for the other parts. With ``fresh``, as
        many parts that were not simulated yet are simulated, too.
        """
        parts, members = tried_apart(plan, self.scenario), self.scenario.members
        changed = [one for one in parts if not _models([one]).isdisjoint(members(names))]
        again = _models(changed)
        known = {name for name in before.trial.models if again.isdisjoint(members([name]))}
        seen = again.union(members(before.trial.models))
        others = [one for one in parts if fresh and _models([one]).isdisjoint(seen)]
        trial = replace(before.trial, models={m: before.trial.models[m] for m in sorted(known)})
        tried = before.trial.parts_tried
        fleet = uniform_fleet(self.scenario.gpu, self.scenario.limit)
        for some in (changed, others):
            whole = replace(plan, partitions=tuple(p for one in some for p in one.partitions))
            more = try_plan(
                whole, fleet, self.scenario, self.system, seed=_OTHER_SEED, cores=self.cores
            )
            tried += more.parts_tried if some is others else 0
            trial = trial.beside(more, {**trial.asked, **more.asked})
        there = _in_use(plan, fleet)
        return SimulatedPlan(plan, there, replace(trial, parts=len(parts), parts_tried=tried))

    def complete(self, plan: Plan) -> bool:
        """Whether everything that can be served is served."""
        return plan.underserved <= self.hopeless

    def spread(self, plan: Plan, fleet: Fleet) -> Plan:
        """Use what the plan leaves idle: wider partitions, and guests."""
        profiles = self.scenario.busy_profiles
        wide = widened(plan, fleet, profiles)
        return self.as_asked(with_guests(wide, self.scenario.demand, fleet, profiles))

    def as_asked(self, plan: Plan) -> Plan:
        """Scale the plan's rates to those asked for."""
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

    @cached_property
    def hopeless(self) -> frozenset[str]:
        """Models without a profile, or late even alone on a whole accelerator."""
        known = self.scenario.busy_profiles
        return frozenset(
            one.model
            for one in self.scenario.demand
            if one.model not in known
            or not known[one.model].points
            or surface(known[one.model]).latency_ms(1, 100) > one.slo_ms
        )


def _bursts_s(asked: Demand) -> float:
    """Seconds until enough independent requests have come, by the variance of gaps."""
    bursty = asked.rows_per_s > 0 and asked.cv > 1.0
    return _LEAST * asked.cv**2 / asked.rows_per_s if bursty else 0.0


def _models(parts: Sequence[Plan]) -> set[str]:
    return {slot.model for one in parts for part in one.partitions for slot in part.slots}


def _in_use(plan: Plan, fleet: Fleet) -> Fleet:
    """The accelerators that the plan uses, and at least one."""
    used = {part.gpu for part in plan.partitions}
    return Fleet(tuple(gpu for gpu in fleet.gpus if gpu.id in used) or fleet.gpus[:1])
