"""What is believed of the host's memory and disk: which weights have to be read first, and when."""

from __future__ import annotations

from typing import NamedTuple

from interlace.core.loading import DISK, LoadPlan, WeightPath
from interlace.engine.residency import FetchInFlight, LinkBeliefs, ModelWeights
from interlace.engine.state import EngineState
from interlace.perf.cold_start import read_ms
from interlace.perf.host_memory import HostMemory


class DiskRead(NamedTuple):
    """How long the disk reads for a plan, and how long the first execution waits for that."""

    read_ms: float = 0.0
    stall_ms: float = 0.0


_NONE = DiskRead()


class HostReads:
    """Where devices tell which weights are on disk only (``TierChanged``), that is what counts.

    Where accelerators have a ``host`` tier it follows what fetches bring into the host's memory:
    devices keep the same models there. The disk is taken to be as fast as it is said to be, and
    reads one model at a time.
    """

    def __init__(self, state: EngineState, links: LinkBeliefs) -> None:
        self._state = state
        self._links = links
        self._memory: HostMemory | None = None

    def plan(self, entry: ModelWeights) -> LoadPlan:
        """What brings the rest of a model from where it is."""
        return entry.plan(self.on_disk(entry))

    def on_disk(self, entry: ModelWeights) -> bool:
        """Whether the host has a model on its disk only."""
        memory = self._known()
        if not entry.curve.on_disk:
            return False
        return entry.on_disk or (memory is not None and not memory.holds(entry.model))

    def read(self, entry: ModelWeights, plan: LoadPlan) -> DiskRead:
        """What the disk has to do for a plan."""
        if not self.on_disk(entry):
            return _NONE
        layers, curve = entry.curve.on_disk, entry.curve
        left = [
            layer
            for layer, step in zip(layers, plan.steps, strict=True)
            if step.via is WeightPath.HOST
        ]
        total_ms = sum(layers[index].copy_ms for index in plan.brought) + sum(map(read_ms, left))
        # A copy over a link of its own follows the read.
        last_ms = max((curve.layers[index].copy_ms for index in plan.brought), default=0.0)
        return DiskRead(total_ms, max(0.0, plan.end_ms - entry.run_ms(plan)) + last_ms)

    def free_ms(self, now_ms: float) -> float:
        """When the disk is predicted to be free."""
        return max(now_ms, self._links.free_ms(DISK))

    def begin(self, fetch: FetchInFlight, entry: ModelWeights, now_ms: float) -> None:
        """A fetch was sent: it is over once the disk has read."""
        read, memory = self.read(entry, fetch.work.plan), self._known()
        if memory is not None:
            memory.use(entry.model, entry.curve.nbytes(range(len(entry.curve.layers))))
        if read.read_ms:
            free_ms = self.free_ms(now_ms)
            self._links.reads(fetch, free_ms + read.read_ms, free_ms + read.stall_ms)

    def _known(self) -> HostMemory | None:
        if self._memory is None:
            tiers = [gpu.host for gpu in self._state.fleet.gpus if gpu.host is not None]
            self._memory = HostMemory(tiers[0]) if tiers else None
        return self._memory
