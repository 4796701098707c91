"""The ideal scheduler of gpulet's section 5.2: every way to cut the GPUs, one placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class EveryCut:
    """The planner on every choice of cuts, like GPUs exchanged at will, until all is served.

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
