"""How long workers of several batch sizes take when they share an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.perf.latency import Surface
from interlace.perf.worker_sizes import Configuration, Measure


@dataclass(frozen=True, slots=True)
class ProcessorSharing:
    """Processor sharing: work over capacity, as in E2bird section 7.1 (W / u).

    A worker of b rows has the work of one batch alone, L(b). Those that run divide the capacity
    in proportion to b ** ``evenness``: at 0 each worker has an equal part, which is what an
    operating system gives to processes; at 1 each row has, N-Ebird's hypothesis. ``gain`` is what
    the capacity of two and more together has over that of one, whose kernels leave units idle, and
    ``switch`` the part of it that every worker from the third on costs.
    """

    evenness: float = 0.0
    gain: float = 1.0
    switch: float = 0.0

    def speeds(self, sizes: Sequence[int]) -> list[float]:
        """Work done per ms by each of the workers of these sizes, which all run."""
        count = len(sizes)
        if count < 2:
            return [1.0] * count
        capacity = self.gain / (1.0 + self.switch * (count - 2))
        weights = [size**self.evenness for size in sizes]
        total = sum(weights)
        return [capacity * weight / total for weight in weights]

    def ends_ms(self, works_ms: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """When each of the workers ends, all begun at 0."""
        left = dict(enumerate(works_ms))
        ends = [0.0] * len(sizes)
        now_ms = 0.0
        while left:
            running = list(left)
            speed = dict(zip(running, self.speeds([sizes[i] for i in running]), strict=True))
            step_ms = min(left[i] / speed[i] for i in running)
            now_ms += step_ms
            for i in running:
                left[i] -= step_ms * speed[i]
                if left[i] <= 1e-9 * works_ms[i]:
                    ends[i] = now_ms
                    del left[i]
        return ends


#: Each worker an equal part.
EQUAL: Final = ProcessorSharing()


def co_running(latency: Surface, share_pct: int, sharing: ProcessorSharing = EQUAL) -> Measure:
    """The mean latency of the workers of a configuration that begin together (section 7.3.1)."""

    def measured(one: Configuration) -> float:
        sizes = [1 << power for power, count in enumerate(one) for _ in range(count)]
        works_ms = [latency.latency_ms(size, share_pct) for size in sizes]
        return sum(sharing.ends_ms(works_ms, sizes)) / len(sizes)

    return measured
