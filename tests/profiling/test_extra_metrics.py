"""Which points are measured for what, and whose counters go where."""

from dataclasses import replace

import pytest

from interlace.core.messages import Failure, Load, Work
from interlace.core.profile import LatencyPoint, Profile
from interlace.profiling.extra_metrics import ExtraMetrics, with_power
from interlace.profiling.rig import Rig
from interlace.runtime.clock import SimClock
from tests.profiling.cuda.test_draws import FakeNvml
from tests.profiling.fakes import GPU, FakeArena, FakeDevice, in_virtual_time, make_model

SHARES = (25, 50, 75, 100)
MODELS = (make_model("a"), make_model("b"))


def measure(
    wanted: ExtraMetrics, device: FakeDevice, said: list[str]
) -> tuple[dict[str, Profile], dict[str, dict[tuple[int, int], float]]]:
    points = {(b, s): LatencyPoint(1.0, 1.0, 1.0, 9) for b in (1, 2, 4) for s in SHARES}
    known = {model.key: Profile(model.key, "d", "k", 1, 1, points) for model in MODELS}
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    work = with_power(rig, FakeNvml(device), MODELS, known, wanted, said)
    return in_virtual_time(device.clock, work)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice(SimClock(), replace(GPU, shares_pct=SHARES))


def test_pressure_is_counted_where_readers_will_stand_and_power_is_left_alone(
    device: FakeDevice,
) -> None:
    after, counted = measure(ExtraMetrics(pressure=True), device, [])
    for model in MODELS:
        assert counted[model.key] == dict.fromkeys(
            [(batch, share) for share in (25, 50, 75) for batch in (1, 4)], 0.4
        )
        assert after[model.key].draws == {}


def test_power_is_measured_at_its_own_points_and_at_those(device: FakeDevice) -> None:
    after, counted = measure(ExtraMetrics(power=True, pressure=True), device, [])
    for model in MODELS:
        assert set(after[model.key].draws) == set(counted[model.key])
        assert {share for _, share in after[model.key].draws} == set(SHARES)
        assert {batch for batch, share in after[model.key].draws if share == 75} == {1, 2, 4}
        assert {batch for batch, share in after[model.key].draws if share == 50} == {1, 4}


def test_a_model_that_fails_is_told_and_the_next_is_measured(device: FakeDevice) -> None:
    def judge(work: Work) -> Failure | None:
        broken = isinstance(work, Load) and work.model == MODELS[0].key
        return Failure("no room") if broken else None

    device.fail = judge
    said: list[str] = []
    after, _ = measure(ExtraMetrics(power=True), device, said)
    assert set(after) == {MODELS[1].key}
    assert said == ["a: load failed: no room"]
