"""The systems that meet on one GPU: a row of the catalog, the mechanism it has, its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.policy.base import System
from interlace.policy.catalog import system


@dataclass(frozen=True, slots=True)
class Contestant:
    """``device`` is the mechanism, ``row`` the catalog's; ``apart``: a stream a model, no share."""

    name: str
    device: str
    row: str
    apart: bool = False

    @property
    def system(self) -> System:
        return system(self.row)

    def plan(self, asked: Sequence[Demand], gpu: Gpu, profiles: Mapping[str, Profile]) -> Plan:
        """What its planner makes of this GPU."""
        if self.apart:
            return side_by_side(asked, gpu)
        return self.system.planner(asked, Fleet((gpu,)), profiles, Plan())


#: Of one device together: starting one takes seconds. The papers' schedulers get green contexts,
#: under which their plans change at once.
CONTESTANTS: Final = (
    Contestant("interlace", "green", "interlace"),
    Contestant("temporal", "green", "temporal"),
    Contestant("gpulet", "green", "gpulet"),
    Contestant("D-STACK", "green", "dstack"),
    Contestant("E-Ebird", "green", "e2bird"),
    Contestant("streams", "streams", "tfserving-nowait", apart=True),
)

#: The same on percentages of MPS, as they were published: a process for each partition.
ON_MPS: Final = (
    Contestant("GSLICE", "mps", "gslice"),
    Contestant("gpulet", "mps", "gpulet"),
    Contestant("D-STACK", "mps", "dstack"),
    Contestant("E-Ebird", "mps", "e2bird"),
)


def side_by_side(asked: Sequence[Demand], gpu: Gpu) -> Plan:
    """Every model on a stream of its own over all SMs: Triton with an instance a model."""
    partitions = tuple(
        Partition(f"{gpu.id}:{place}", gpu.id, gpu.shares_pct[-1], (_slot(one),))
        for place, one in enumerate(asked)
    )
    return Plan(partitions, overlapping=True)


def protecting(asked: Sequence[Demand], gpu: Gpu, share_pct: int) -> Plan:
    """The first model on a share of its own, all others on the largest one that is left."""
    first, *others = asked
    rest = max((s for s in gpu.shares_pct if gpu.legal((share_pct, s))), default=0)
    own = Partition(f"{gpu.id}:own", gpu.id, share_pct, (_slot(first),))
    if not rest or not others:
        return Plan((own,))
    shared = Partition(f"{gpu.id}:rest", gpu.id, rest, tuple(_slot(one) for one in others))
    return Plan((own, shared))


def scaled(asked: Sequence[Demand], factor: float) -> tuple[Demand, ...]:
    """The same models, every rate times a factor."""
    return tuple(replace(one, rate_rps=one.rate_rps * factor) for one in asked)


def _slot(one: Demand) -> Slot:
    return Slot(one.model, one.max_batch, one.rate_rps)
