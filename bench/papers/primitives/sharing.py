"""Ways in which a GPU that nobody cuts is shared, as rules for a simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from interlace.device.simulated.contention import RunningBatch

#: Kernels of one inference: 156 of MobileNet are counted in D-STACK's Figure 5; the others are the
#: operations of the networks as PyTorch runs them (convolution, normalisation, ReLU, addition,
#: pooling, linear), which for MobileNet are of the same order.
KERNELS: Final = {"alexnet": 20, "mobilenet": 156, "resnet50": 174, "vgg19": 43}
_ENOUGH: Final = 1.05


def time_sliced(running: Sequence[RunningBatch]) -> Sequence[float]:
    """Processes take turns on the whole GPU in equal slices (section IV-B, temporal sharing)."""
    return [1.0 / len(running)] * len(running)


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Kernels of all processes are served as they come, without limits (default MPS).

    Each process has one kernel waiting or running. In a round each has one served, which fills
    the part of the GPU that its batch can use: so a round takes the sum of their kernels' times
    alone, each times that part, and whoever has long kernels gets on best.
    """

    kernels: dict[str, int] = field(default_factory=lambda: dict(KERNELS))

    def __call__(self, running: Sequence[RunningBatch]) -> Sequence[float]:
        longest = [self._kernel_ms(one) for one in running]
        used = [self._part(one) for one in running]
        if sum(used) <= 1.0:
            return [1.0] * len(running)
        round_ms = sum(part * ms for part, ms in zip(used, longest, strict=True))
        return [min(1.0, ms / round_ms) for ms in longest]

    def _kernel_ms(self, one: RunningBatch) -> float:
        return one.latency.latency_ms(one.rows, 100) / self.kernels[one.model]

    def _part(self, one: RunningBatch) -> float:
        """The smallest share at which a batch is nearly as fast as on the whole GPU."""
        best_ms = one.latency.latency_ms(one.rows, 100)
        for share in one.latency.shares_pct:
            if one.latency.latency_ms(one.rows, share) <= best_ms * _ENOUGH:
                return share / 100.0
        return 1.0
