"""How much of the GPU a run kept busy: graph times by the shares that they ran on."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Gpu
from interlace.core.messages import Command, CreatePartition, Event, Run, WorkFinished


class Busy:
    """An observer of a runtime. Of partitions that overlap, shares add up to more than the GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._shares_pct: dict[str, int] = {}
        self._busy_ms = 0.0

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if not isinstance(event, WorkFinished) or event.failure is not None:
            return
        work = event.work
        if isinstance(work, CreatePartition):
            self._shares_pct[work.partition] = work.share_pct
        elif isinstance(work, Run):
            part = self._gpu.fraction(self._shares_pct[work.partition])
            # Without the GPU's own time, from the launch until its end was seen.
            self._busy_ms += part * (event.timing.gpu_ms or event.timing.infer_ms)

    def part(self, seconds: float) -> float:
        """Of all SMs over so long."""
        return self._busy_ms / (1000.0 * seconds)
