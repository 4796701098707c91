"""Which points are measured for what, and whose counters go where."""

from dataclasses import replace

import pytest

from interlace.core.messages import Failure, Load, Work
from interlace.core.profile import LatencyPoint, Profile
from interlace.profiling.extra_metrics import count_dram_use
from interlace.profiling.rig import Rig
from interlace.runtime.clock import SimClock
from tests.profiling.cuda.test_dram_use import FakeNvml
from tests.profiling.fakes import GPU, FakeArena, FakeDevice, in_virtual_time, make_model

SHARES = (25, 50, 75, 100)
MODELS = (make_model("a"), make_model("b"))


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
