"""DRAM is counted where readers will stand, while batches run back to back; nothing stays."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from interlace.core.messages import Failure, Load, Run, Work
from interlace.core.profile import LatencyPoint, Profile
from interlace.profiling.cuda.nvml import NvmlError
from interlace.profiling.extra_metrics import count_dram_use, measure_dram_use
from interlace.profiling.rig import Rig
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import (
    GPU,
    FakeArena,
    FakeDevice,
    in_virtual_time,
    latency_ms,
    make_model,
)

SHARES = (25, 50, 75, 100)
MODELS = (make_model("a"), make_model("b"))


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


def measure(
    nvml: FakeNvml, said: list[str] | None = None
) -> dict[str, dict[tuple[int, int], float]]:
    points = {(b, s): LatencyPoint(1.0, 1.0, 1.0, 9) for b in (1, 2, 4) for s in SHARES}
    known = {model.key: Profile(model.key, "d", "k", 1, 1, points) for model in MODELS}
    rig = Rig(nvml.device, nvml.device.clock, FakeArena())  # type: ignore[arg-type]
    failures = [] if said is None else said
    return in_virtual_time(nvml.device.clock, count_dram_use(rig, nvml, MODELS, known, failures))


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(SimClock(), replace(GPU, shares_pct=SHARES))


def test_dram_is_counted_where_readers_will_stand(device: FakeDevice) -> None:
    counted = measure(FakeNvml(device))
    for model in MODELS:
        assert counted[model.key] == dict.fromkeys(
            [(batch, share) for share in (25, 50, 75) for batch in (1, 4)], 0.4
        )


@pytest.mark.parametrize("way", ["absent", "refused"])
def test_without_counters_readers_stand_in(device: FakeDevice, way: str) -> None:
    said: list[str] = []
    assert measure(FakeNvml(device, counts=way != "absent", refuses=way == "refused"), said) == {}
    assert said == []


def test_a_model_that_fails_is_told_and_the_next_is_measured(device: FakeDevice) -> None:
    def judge(work: Work) -> Failure | None:
        broken = isinstance(work, Load) and work.model == MODELS[0].key
        return Failure("no room") if broken else None

    device.fail = judge
    said: list[str] = []
    assert set(measure(FakeNvml(device), said)) == {MODELS[1].key}
    assert said == ["a: load failed: no room"]


def measure_one(nvml: FakeNvml) -> dict[tuple[int, int], float]:
    device = nvml.device
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]

    async def whole() -> dict[tuple[int, int], float]:
        found = await measure_dram_use(rig, nvml, make_model(), {50: (1, 4), 100: (2,)})
        await rig.close()
        return found

    return in_virtual_time(device.clock, whole())


def test_each_point_is_counted_while_the_gpu_is_kept_full() -> None:
    nvml = FakeNvml(FakeDevice(SimClock()))
    assert measure_one(nvml) == dict.fromkeys([(1, 50), (4, 50), (2, 100)], 0.4)
    assert nvml.windows_ms == pytest.approx([1000.0] * 3, abs=latency_ms(4, 50))
    assert sum(isinstance(work, Run) for work in nvml.device.log) > 3
    assert not nvml.samples
    assert not nvml.device.loaded
    assert not nvml.device.partitions


def test_what_is_not_counted_is_not_zero() -> None:
    assert measure_one(FakeNvml(FakeDevice(SimClock()), used=None)) == {}
