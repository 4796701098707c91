"""Energy adds up; pressure is taken where it is counted; nothing is left behind."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.messages import Run
from interlace.core.profile import LatencyPoint, PowerDraw, Profile
from interlace.profiling.cuda.nvml import GpmCounters, NvmlError
from interlace.profiling.cuda.power import (
    PowerMeter,
    PowerSample,
    idle_w,
    measure_power,
    power_points,
)
from interlace.profiling.rig import MeasureError, Rig
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import FakeArena, FakeDevice, in_virtual_time, latency_ms, make_model

IDLE_W = 100.0


@dataclass
class FakeNvml:
    """A GPU that draws ``IDLE_W``, and as much again for each 10 rows that it has executed a s."""

    device: FakeDevice
    row_j: float = 10.0
    counts: bool = True
    refuses: bool = False
    samples: set[int] = field(default_factory=set)
    stuck: bool = False

    def energy_j(self) -> float:
        if self.stuck:
            return 0.0
        rows = sum(work.batch.rows for work in self.device.log if isinstance(work, Run))
        return IDLE_W * self.device.clock.now_ms() / 1000.0 + self.row_j * rows

    def sample(self) -> Any:
        if self.refuses:
            raise NvmlError("no permission")
        self.samples.add(len(self.samples) + 1)
        return len(self.samples)

    def between(self, first: Any, second: Any) -> GpmCounters:
        self.samples -= {first, second}
        return GpmCounters(0.9, 0.4)

    def close(self) -> None: ...


def profile_of(model_key: str) -> Profile:
    points = {
        (batch, share): LatencyPoint(1, 1, 1, 9) for batch in (1, 2, 4) for share in (50, 100)
    }
    return Profile(model_key, "d", "k", 0, 0, points)


def measure(nvml: FakeNvml, seconds: float = 1.0) -> dict[tuple[int, int], PowerSample]:
    device = nvml.device
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    model = make_model()

    async def both() -> dict[tuple[int, int], PowerSample]:
        meter = PowerMeter(rig, nvml)
        idle = await idle_w(rig, meter, seconds)
        found = await measure_power(
            rig, meter, model, power_points(profile_of(model.key)), idle, seconds
        )
        await rig.close()
        return found

    return in_virtual_time(device.clock, both())


def test_energy_of_requests_is_what_was_drawn() -> None:
    nvml = FakeNvml(FakeDevice(SimClock()))
    found = measure(nvml)
    assert set(found) == {(b, s) for b in (1, 2, 4) for s in (50, 100)}
    for (batch, share), one in found.items():
        # Two batches are in flight at a time, and the fake runs both at once.
        assert one.draw.rows_per_s == pytest.approx(
            2000 * batch / latency_ms(batch, share), rel=0.1
        )
        assert one.draw.idle_w == pytest.approx(IDLE_W)
        assert one.draw.extra_j == pytest.approx(nvml.row_j, rel=0.05)
        assert one.counters == GpmCounters(0.9, 0.4)
    assert not nvml.samples
    assert not nvml.device.loaded
    assert not nvml.device.partitions


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 50.0), st.floats(0.3, 3.0))
def test_energy_adds_up(row_j: float, seconds: float) -> None:
    for one in measure(FakeNvml(FakeDevice(SimClock()), row_j), seconds).values():
        draw = one.draw
        assert draw.request_j * draw.rows_per_s == pytest.approx(draw.power_w)
        assert draw.request_j == pytest.approx(draw.extra_j + draw.idle_w / draw.rows_per_s)
        assert draw.request_j >= draw.extra_j >= 0.0


@given(st.floats(0.0, 700.0), st.floats(0.0, 700.0), st.floats(0.1, 1e5))
def test_no_request_gives_energy_back(power_w: float, idle: float, rate: float) -> None:
    assert PowerDraw(power_w, idle, rate).extra_j >= 0.0


@pytest.mark.parametrize("way", ["absent", "refused"])
def test_without_counters_there_is_energy_all_the_same(way: str) -> None:
    device = FakeDevice(SimClock())
    nvml = FakeNvml(device, counts=way != "absent", refuses=way == "refused")
    found = measure(nvml)
    assert {one.counters for one in found.values()} == {GpmCounters(None, None)}
    assert all(one.draw.power_w > IDLE_W for one in found.values())


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(MeasureError, match="stood still"):
        measure(FakeNvml(FakeDevice(SimClock()), stuck=True))


def test_few_points_are_chosen() -> None:
    points = {
        (batch, share): LatencyPoint(1, 1, 1, 9)
        for batch in (1, 2, 4, 8, 16)
        for share in range(5, 101, 5)
    }
    found = power_points(Profile("m", "d", "k", 0, 0, points))
    assert found == dict.fromkeys((5, 55, 100), (1, 4, 16))
    assert power_points(Profile("m", "d", "k", 0, 0, {(1, 100): LatencyPoint(1, 1, 1, 9)})) == {
        100: (1,)
    }
