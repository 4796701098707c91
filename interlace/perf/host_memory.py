"""Which models' weights are in the memory of a host, and which have to be read from its disk."""

from __future__ import annotations

from collections import OrderedDict

from interlace.core.loading import HostTier


class HostMemory:
    """Whole models, the longest unused leaving for the next, as a page cache has them.

    What is larger than all of it is read each time. Layers that an accelerator reads from the host
    are taken to stay where they are.
    """

    def __init__(self, tier: HostTier) -> None:
        self.tier = tier
        self._held: OrderedDict[str, int] = OrderedDict()
        self._held_bytes = 0

    def holds(self, model: str) -> bool:
        """Whether its weights need not be read from the disk."""
        return model in self._held

    def use(self, model: str, nbytes: int) -> bool:
        """Its weights, so many in all, are used now; true if they were there."""
        if model in self._held:
            self._held.move_to_end(model)
            return True
        if nbytes <= self.tier.memory_bytes:
            while self._held_bytes + nbytes > self.tier.memory_bytes:
                self._held_bytes -= self._held.popitem(last=False)[1]
            self._held[model] = nbytes
            self._held_bytes += nbytes
        return False
