"""The systems that meet on one GPU: a row of the catalog, and its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching


@dataclass(frozen=True, slots=True)
class Contestant:
    """``row`` is the catalog's.

    With ``instances``, every model has so many streams over all SMs instead of what its planner
    makes; ``wait_ms`` is then how long a request may wait for company.
    """

    name: str
    row: str
    instances: int = 0
    wait_ms: float = 0.0

    @property
    def system(self) -> System:
        found = resolve(self.row)
        if not self.instances:
            return found
        return replace(found, dispatcher=DynamicBatching(wait_ms=self.wait_ms))

    def plan(self, asked: Sequence[Demand], gpu: Gpu, profiles: Mapping[str, Profile]) -> Plan:
        """What its planner makes of this GPU."""
        if self.instances:
            return side_by_side(asked, gpu, self.instances)
        return self.system.planner(asked, Fleet((gpu,)), profiles, Plan())


OURS: Final = Contestant("interlace", "interlace")
#: Every batch has the whole GPU, which is never idle while something waits.
WHOLE: Final = (Contestant("Clockwork", "clockwork"),)
#: Triton's way is two instances of a model and a short wait for company; which is best, a GPU says.
STREAMS: Final = (
    Contestant("streams", "triton", 1),
    Contestant("streams, 2 ms", "triton", 1, 2.0),
    Contestant("two streams", "triton", 2),
    Contestant("Triton-like", "triton", 2, 2.0),
)
#: A process a model, as servers that are started once for each have them: at once under MPS, with
#: all SMs or our planner's shares, or one after the other as the driver slices time.
PROCESSES: Final[Mapping[str, tuple[Contestant, ...]]] = {
    "mps": (Contestant("MPS", "triton", 1), Contestant("MPS at our shares", "interlace")),
    "processes": (Contestant("time-sliced processes", "triton", 1),),
}
#: The papers' schedulers get green contexts, under which their plans change at once.
PAPERS: Final = (
    Contestant("temporal", "temporal"),
    Contestant("gpulet", "gpulet"),
    Contestant("D-STACK", "dstack"),
    Contestant("E-Ebird", "e2bird"),
)
#: All of one device together: starting one takes seconds.
CONTESTANTS: Final = (OURS, *WHOLE, *STREAMS, *PAPERS)


def side_by_side(asked: Sequence[Demand], gpu: Gpu, instances: int = 1) -> Plan:
    """Every model on streams of its own over all SMs, as Triton has instances of a model."""
    partitions = tuple(
        Partition(
            f"{gpu.id}:{place}.{number}", gpu.id, gpu.shares_pct[-1], (_slot(one, instances),)
        )
        for number in range(instances)
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
    return tuple(replace(one, rows_per_s=one.rows_per_s * factor) for one in asked)


def _slot(one: Demand, instances: int = 1) -> Slot:
    return Slot(one.model, one.max_batch, one.rows_per_s / instances)
