"""A schedule put to the test: requests at random on simulated GPUs that slow each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import exp
from typing import Final

from bench.papers.gpulet.law import LAW
from bench.planning.highest import known
from bench.planning.schedulers import GPU, mix
from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.core.request import Outcome
from interlace.device.simulated.physics import Physics
from interlace.policy.admission import admit_all
from interlace.policy.base import Planner
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.workload.renewal import poisson

#: Section 5.1: two servers of two RTX 2080 Ti.
GPUS: Final = 4
#: More than this part of the requests late or dropped is a violation (section 5.2).
ALLOWED: Final = 0.01


def planned_rps(rate_rps: float) -> float:
    """The rate that is planned for a Poisson stream of this rate, as the released code does.

    The least count that a second's requests stay within 99 % of the time, and one more; a tenth
    more above 550 requests/s.
    """
    if rate_rps > 550.0:
        return rate_rps * 1.1
    chance = below = exp(-rate_rps)
    count = 0
    while below < 0.99:
        count += 1
        chance *= rate_rps / count
        below += chance
    return count + 1.0


def planned(demand: list[Demand]) -> list[Demand]:
    return [replace(one, rows_per_s=planned_rps(one.rows_per_s)) for one in demand]


def schedule(
    planner: Planner, name: str, rate_rps: float, profiles: Profiles | None = None
) -> Plan | None:
    """The plan of a mix, every model at that rate; none if it is not schedulable."""
    there = uniform_fleet(GPU, GPUS)
    plan = planner(planned(mix(name, rate_rps)), there, profiles or known(), Plan())
    return None if plan.unserved_rows_per_s else plan


def violation(
    plan: Plan, name: str, rate_rps: float, seconds: float, profiles: Profiles | None = None
) -> float:
    """The part of a mix's requests that were late or dropped under a plan."""
    demand = tuple(mix(name, rate_rps))
    record = played(
        replace(resolve("gpulet"), admission=admit_all),  # as in gpulet's prototype
        uniform_fleet(GPU, GPUS),
        demand,
        profiles or known(),
        merge_arrivals({one.model: poisson(one.rows_per_s) for one in demand}, seconds, seed=1),
        plan,
        Physics(interference=LAW),
    )
    late = sum(one.outcome is not Outcome.OK for one in record.served)
    return late / max(1, len(record.served))


@dataclass(frozen=True, slots=True)
class EveryCut:
    """The ideal of section 5.2: a planner on every choice of cuts until all is served.

    The paper tries 4^4 choices, four cuts on each of four GPUs; as the GPUs are alike, 35 of them
    differ. Its released code places models by the same heuristic as gpulet does. Elastic
    partitioning itself is tried first: it is one more way.
    """

    planner: Planner

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        best = self.planner(demand, fleet, profiles, current)
        for layouts in combinations_with_replacement(fleet.gpus[0].layouts, len(fleet.gpus)):
            if not best.unserved_rows_per_s:
                break
            gpus = tuple(
                replace(gpu, layouts=(layout,))
                for gpu, layout in zip(fleet.gpus, layouts, strict=True)
            )
            plan = self.planner(demand, replace(fleet, gpus=gpus), profiles, current)
            if len(plan.unserved_rows_per_s) < len(best.unserved_rows_per_s):
                best = plan
        return best
