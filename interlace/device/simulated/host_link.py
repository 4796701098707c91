"""Things of which there is one, used in turn: a copy engine, a launching host thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FifoResource:
    """First come, first served."""

    __slots__ = ("_free_at_ms",)

    def __init__(self) -> None:
        self._free_at_ms = 0.0

    def take(self, now_ms: float, for_ms: float) -> float:
        """Use it for that long as soon as it is free; when that ends."""
        self._free_at_ms = max(now_ms, self._free_at_ms) + for_ms
        return self._free_at_ms


class Transfer(NamedTuple):
    """Bytes that one row of a model brings and takes away."""

    input_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class HostLink:
    """Copies between host and device: a bandwidth, and what each copy costs to start.

    ``gather_bytes_per_ms`` is the bandwidth of putting scattered inputs together in host memory
    first, which a device that gathers by itself (GPU-DMA) does not pay; infinite for one that does.
    """

    bytes_per_ms: float
    start_ms: float = 0.01
    gather_bytes_per_ms: float = float("inf")

    def gathered_ms(self, nbytes: int, requests: int) -> float:
        """Time to bring in the inputs of so many requests: a copy each, or gathered first."""
        if self.gather_bytes_per_ms == float("inf"):
            return self.start_ms * requests + nbytes / self.bytes_per_ms
        return self.start_ms + nbytes / self.bytes_per_ms + nbytes / self.gather_bytes_per_ms

    def copied_ms(self, nbytes: int) -> float:
        """Time of one copy."""
        return self.start_ms + nbytes / self.bytes_per_ms
