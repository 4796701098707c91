"""DRAM is counted while batches run back to back; nothing is left behind."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from interlace.core.messages import Run
from interlace.profiling.cuda.dram_use import measure_dram_use
from interlace.profiling.cuda.nvml import NvmlError
from interlace.profiling.rig import Rig
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import FakeArena, FakeDevice, in_virtual_time, latency_ms, make_model


@dataclass
class FakeNvml:
    """A GPU that counts ``used`` of its DRAM, whatever runs."""

    device: FakeDevice
    used: float | None = 0.4
    counts: bool = True
    refuses: bool = False
    samples: dict[int, float] = field(default_factory=dict)
    windows_ms: list[float] = field(default_factory=list)

    def sample(self) -> Any:
        if self.refuses:
            raise NvmlError("no permission")
        self.samples[len(self.samples) + 1] = self.device.clock.now_ms()
        return len(self.samples)

    def dram_use(self, first: Any, second: Any) -> float | None:
        began_ms, ended_ms = self.samples.pop(first), self.samples.pop(second)
        self.windows_ms.append(ended_ms - began_ms)
        return self.used

    def close(self) -> None: ...


def measure(nvml: FakeNvml) -> dict[tuple[int, int], float]:
    device = nvml.device
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]

    async def whole() -> dict[tuple[int, int], float]:
        found = await measure_dram_use(rig, nvml, make_model(), {50: (1, 4), 100: (2,)}, 1.0)
        await rig.close()
        return found

    return in_virtual_time(device.clock, whole())


def test_each_point_is_counted_while_the_gpu_is_kept_full() -> None:
    nvml = FakeNvml(FakeDevice(SimClock()))
    assert measure(nvml) == dict.fromkeys([(1, 50), (4, 50), (2, 100)], 0.4)
    assert nvml.windows_ms == pytest.approx([1000.0] * 3, abs=latency_ms(4, 50))
    assert sum(isinstance(work, Run) for work in nvml.device.log) > 3
    assert not nvml.samples
    assert not nvml.device.loaded
    assert not nvml.device.partitions


def test_what_is_not_counted_is_not_zero() -> None:
    assert measure(FakeNvml(FakeDevice(SimClock()), used=None)) == {}
