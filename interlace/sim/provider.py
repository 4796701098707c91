"""Accelerators on order, in virtual time: each comes some time after it was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from interlace.core.hardware import Gpu
from interlace.device.base import Device
from interlace.runtime.clock import Clock
from interlace.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Reserve:
    """Accelerators that can be had beyond those that are there.

    Each comes ``delay_ms`` after it was asked for: minutes for a machine of a cloud, nothing for
    one that stands idle.
    """

    gpus: tuple[Gpu, ...]
    delay_ms: float


class SimulatedProvider:
    """Brings accelerators of a reserve, and takes back what is dismissed, whichever it was."""

    def __init__(self, reserve: Reserve, clock: Clock, device: Callable[[Gpu], Device]) -> None:
        self._clock = clock
        self._device = device
        self._delay_ms = reserve.delay_ms
        self._spare: list[Gpu] = list(reserve.gpus)
        self._coming: dict[str, tuple[Gpu, float]] = {}
        self._going: set[str] = set()

    def scale(self, wanted: Mapping[str, int], host: Runtime) -> None:
        """Order what is missing; cancel orders that are not needed any more, the last first."""
        coming = [gpu for gpu, _ in self._coming.values()]
        missing = Counter(wanted)
        missing.subtract(gpu.kind for gpu in host.gpus if gpu.id not in self._going)
        missing.subtract(gpu.kind for gpu in coming)
        for gpu in list(self._spare):
            if missing[gpu.kind] > 0:
                missing[gpu.kind] -= 1
                self._order(gpu, host)
        for gpu in reversed(coming):
            if missing[gpu.kind] < 0:
                missing[gpu.kind] += 1
                del self._coming[gpu.id]
                self._spare.insert(0, gpu)

    def dismiss(self, gpu: str, host: Runtime) -> None:
        """Take one that is empty, and have it in reserve again."""
        self._going.add(gpu)
        self._clock.call_soon(lambda: self._take(gpu, host))

    def _order(self, gpu: Gpu, host: Runtime) -> None:
        self._spare.remove(gpu)
        at_ms = self._clock.now_ms() + self._delay_ms
        self._coming[gpu.id] = (gpu, at_ms)
        self._clock.call_at(at_ms, lambda: self._bring(gpu, at_ms, host))

    def _bring(self, gpu: Gpu, at_ms: float, host: Runtime) -> None:
        if self._coming.get(gpu.id) != (gpu, at_ms):
            return  # cancelled, and perhaps ordered again
        del self._coming[gpu.id]
        host.join(self._device(gpu))

    def _take(self, gpu: str, host: Runtime) -> None:
        self._going.discard(gpu)
        there = {one.id: one for one in host.gpus}
        if gpu in there:  # else it was lost meanwhile
            self._spare.append(there[gpu])
            host.leave(gpu)
