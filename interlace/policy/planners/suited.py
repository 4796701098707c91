"""Our planner of accelerators that are there: packed where they can be cut finely, else nested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class Suited:
    """``coarse`` for a machine of a few large units, ``fine`` for accelerators of many shares.

    On two cores, packing leaves a core idle that a burst could use, and all models everywhere is
    better. On a GPU that can be cut finely, small shares serve more (the knee), and models whose
    lengths differ are kept apart. An accelerator is coarse with up to ``few`` legal shares.
    """

    coarse: Planner
    fine: Planner
    few: int = 4

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        finely = any(len(gpu.shares_pct) > self.few or gpu.layouts for gpu in fleet.gpus)
        planner = self.fine if finely else self.coarse
        return planner(demand, fleet, profiles, current)
