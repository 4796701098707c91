"""The questions a serving system answers, and a system: one answer to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.core.request import Request
from interlace.policy.admission import admit_all
from interlace.policy.cold_policy import ColdPolicy
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.decision import Dispatch, Refusal
from interlace.policy.scaling import fixed
from interlace.policy.view import View


class Planner(Protocol):
    """How are the accelerators cut? Total: what does not fit is in ``unserved_rows_per_s``."""

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan: ...


class Dispatcher(Protocol):
    """What runs now?"""

    def __call__(self, view: View, now_ms: float) -> Dispatch: ...


class Admission(Protocol):
    """Is this request admitted? ``None`` is yes."""

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None: ...


class Scaler(Protocol):
    """How many accelerators of each kind, when is that asked again, and for which rates?"""

    @property
    def period_ms(self) -> float:
        """Rates are sampled over periods of this length, and compared with the plan at the end."""

    @property
    def weight(self) -> float:
        """The part of the newest sample in the smoothed rate."""

    @property
    def cool_down_ms(self) -> float:
        """The least time between two plans that rates ask for."""

    @property
    def resolve_ms(self) -> float:
        """How long rates must have been higher before a larger plan is asked for."""

    @property
    def patience_ms(self) -> float:
        """How long rates must have been lower before a smaller plan is asked for.

        Also how long to wait for accelerators that a plan needs and that do not come.
        """

    def target_rows_per_s(self, seen_rows_per_s: float) -> float:
        """The rate to plan for, of a model whose smoothed rate is this."""

    def moved(self, seen_rows_per_s: float, planned_rows_per_s: float) -> int:
        """1 if a model's smoothed rate asks for more than was planned, -1 for less, else 0."""

    def __call__(self, plan: Plan, fleet: Fleet) -> Mapping[str, int]:
        """Accelerators wanted in all, by kind.

        ``plan`` is on the fleet that is there, or, where more can be had, on as few of all of them
        as will do; those are then named in ``fleet`` too.
        """


@dataclass(frozen=True, slots=True)
class System:
    """A planner, a dispatcher and the other answers under one name: a row of the catalog.

    ``planner`` cuts a fleet that is there, all of it; ``packer`` is the same system asked for as
    few accelerators of the fleet as will do, which is what capacity planning wants to know, and
    which plans where accelerators can be had and given back.

    The last four are promises, which ``interlace.testing`` checks.
    """

    name: str
    source: str
    planner: Planner
    packer: Planner
    dispatcher: Dispatcher
    admission: Admission = admit_all
    scaler: Scaler = fixed
    cold: ColdPolicy = COLD_POLICIES["interlace"]
    #: inputs are staged into a pool on the device when they arrive (E2bird section 5)
    staged: bool = False
    #: the planner's, or the packer's, plans are duty cycles: a request waits for at most one
    #: cycle and one execution
    cyclic_planner: bool = False
    cyclic_packer: bool = False
    #: the shares that run at once never exceed the accelerator, though partitions overlap
    within_100: bool = False
    #: of models that contend, none falls further behind than ``policy.fairness`` bounds
    fair: bool = False
    #: capacity plans are what the engine keeps: the packer's answer is tried, widened, narrowed
    tried: bool = False
