"""What is believed of the host's memory and disk, where accelerators have a ``host`` tier."""

from __future__ import annotations

from interlace.core.loading import DISK
from interlace.engine.residency import FetchInFlight, LinkBeliefs, ModelWeights
from interlace.engine.state import EngineState
from interlace.perf.host_memory import HostMemory


class HostReads:
    """Follows what fetches bring into the host's memory: devices keep the same models there.

    The disk is taken to be as fast as it is said to be, and reads one model at a time.
    """

    def __init__(self, state: EngineState, links: LinkBeliefs) -> None:
        self._state = state
        self._links = links
        self._memory: HostMemory | None = None

    def read_ms(self, entry: ModelWeights) -> float:
        """How long the disk reads what of a model is not on the accelerator; 0 if it need not."""
        memory = self._known()
        if memory is None or memory.holds(entry.model):
            return 0.0
        missing = [n for n in range(len(entry.curve.layers)) if n not in entry.there]
        return memory.tier.read_ms(entry.curve.nbytes(missing))

    def free_ms(self, now_ms: float) -> float:
        """When the disk is predicted to be free."""
        return max(now_ms, self._links.free_ms(DISK))

    def begin(self, fetch: FetchInFlight, entry: ModelWeights, now_ms: float) -> None:
        """A fetch was sent: it is over, and its first batch may begin, once the disk has read."""
        read_ms, memory = self.read_ms(entry), self._known()
        if memory is None:
            return
        memory.use(entry.model, entry.curve.nbytes(range(len(entry.curve.layers))))
        if read_ms:
            self._links.reads(fetch, self.free_ms(now_ms) + read_ms)

    def _known(self) -> HostMemory | None:
        if self._memory is None:
            tiers = [gpu.host for gpu in self._state.fleet.gpus if gpu.host is not None]
            self._memory = HostMemory(tiers[0]) if tiers else None
        return self._memory
