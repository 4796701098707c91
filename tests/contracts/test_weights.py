"""The contract of devices whose weights come and go: every one of them passes every test here."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from interlace.core.hardware import Gpu
from interlace.core.loading import LoadPlan, LoadStep, WeightPath
from interlace.core.messages import CreatePartition, Evict, Fetch, Load, Run, Work, WorkFinished
from interlace.core.profile import LayerProfile
from interlace.core.request import Batch, Request
from interlace.device.base import Device
from interlace.device.simulated.device import SimulatedDevice
from interlace.runtime.clock import SimClock
from tests.builders import line_profile
from tests.contracts.stands import run_until
from tests.device.cpu.test_weights import STEPS, WeightsRig

IDS = count(1)


class ColdStand(Protocol):
    """A device with room for ``model``, which partition ``p`` has loaded without its weights."""

    device: Device
    model: str
    steps: int
    finished: list[WorkFinished]

    def request(self) -> Request: ...
    def do(self, work: Work) -> None: ...
    def wait(self, until: Callable[[], bool]) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class CpuColdStand:
    """Worker processes, an arena, and a model of torch."""

    def __init__(self, folder: Path) -> None:
        rig = WeightsRig(folder, 1 << 24)
        self._rig, self.device, self.model, self.steps = rig, rig.device, rig.net.key, STEPS
        self.finished, self.do, self.wait = rig.finished, rig.do, rig.wait
        self.request, self.close = rig.asked, rig.close

    def kill(self) -> None:
        self.device.end("p", "ended by a test", ())  # type: ignore[attr-defined]


class SimulatedColdStand:
    """Links as queues and virtual time."""

    def __init__(self, folder: Path) -> None:
        self._clock, self.model, self.steps = SimClock(), "net", 4
        layers = tuple(LayerProfile(f"{n}", 100, 5.0, 1.0, 40.0) for n in range(self.steps))
        profile = replace(line_profile(self.model, 3.0, 1.0), layers=layers, weights_bytes=400)
        gpu = Gpu("cpu0", "test", 2, 10**9, (50, 100), weights_bytes=1000)
        self._made = SimulatedDevice(gpu, self._clock, {self.model: profile})
        self.device: Device = self._made
        self.finished: list[WorkFinished] = []
        self.do(CreatePartition(gpu.id, "p", 50))
        self.do(Load(gpu.id, "p", self.model, (), True))
        self.wait(lambda: len(self.finished) == 2)

    def request(self) -> Request:
        return Request(next(IDS), self.model, 0.0, 1e9, 1)

    def do(self, work: Work) -> None:
        self.device.do(work, self.finished.append)

    def wait(self, until: Callable[[], bool]) -> None:
        run_until(self._clock, until)

    def kill(self) -> None:
        self._made.kill("p")

    def close(self) -> None:
        self.device.close()


#: One line makes another implementation keep the contract.
STANDS: dict[str, Callable[[Path], ColdStand]] = {
    "cpu": CpuColdStand,
    "simulated": SimulatedColdStand,
}


@pytest.fixture(params=list(STANDS), scope="module")
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ColdStand]:
    """One for all tests: the last of them ends its partition."""
    made = STANDS[request.param](tmp_path_factory.mktemp("cold"))
    yield made
    made.close()


def fetch_of(stand: ColdStand, steps: int | None = None, partition: str = "p") -> Fetch:
    count = stand.steps if steps is None else steps
    plan = tuple(LoadStep(f"{place}", WeightPath.COPY) for place in range(count))
    return Fetch(stand.device.gpu.id, partition, stand.model, LoadPlan(plan, True, 1.0, 1.0))


def evict_of(stand: ColdStand) -> Evict:
    return Evict(stand.device.gpu.id, stand.model, tuple(range(stand.steps)))


def batch_of(stand: ColdStand) -> Run:
    request = stand.request()
    return Run(
        stand.device.gpu.id, "p", Batch(next(IDS), stand.model, (request,), request.rows), 1e6
    )


def ends_of(stand: ColdStand, work: Work) -> list[WorkFinished]:
    return [one for one in stand.finished if one.work is work]


def end_of(stand: ColdStand, work: Work) -> WorkFinished:
    before = len(stand.finished)
    stand.do(work)
    assert len(stand.finished) == before  # never inside ``do``
    stand.wait(lambda: bool(ends_of(stand, work)))
    (finished,) = ends_of(stand, work)
    return finished


def test_weights_come_and_go_and_come_again(stand: ColdStand) -> None:
    for _ in range(3):
        for work in (fetch_of(stand), batch_of(stand), evict_of(stand), evict_of(stand)):
            assert end_of(stand, work).failure is None


def test_a_batch_may_be_sent_while_they_come(stand: ColdStand) -> None:
    fetch, run = fetch_of(stand), batch_of(stand)
    stand.do(fetch)
    stand.do(run)
    stand.wait(lambda: bool(ends_of(stand, fetch) and ends_of(stand, run)))
    assert [one.failure for one in (*ends_of(stand, fetch), *ends_of(stand, run))] == [None, None]


def test_what_is_there_need_not_come_again(stand: ColdStand) -> None:
    assert end_of(stand, fetch_of(stand)).failure is None
    assert end_of(stand, evict_of(stand)).failure is None
    assert end_of(stand, evict_of(stand)).failure is None  # nothing is there


def test_a_plan_of_another_model_fails_plainly(stand: ColdStand) -> None:
    failure = end_of(stand, fetch_of(stand, steps=2)).failure
    assert failure is not None
    assert not failure.fatal
    assert "a plan of 2 layers" in failure.detail


def test_a_fetch_for_a_partition_that_is_not_there_fails(stand: ColdStand) -> None:
    assert end_of(stand, fetch_of(stand, partition="nowhere")).failure is not None


def test_a_cancelled_fetch_ends_once(stand: ColdStand) -> None:
    fetch = fetch_of(stand)
    stand.do(fetch)
    stand.device.cancel_fetch(stand.model)
    stand.device.cancel_fetch("of no model")
    stand.wait(lambda: bool(ends_of(stand, fetch)))
    again = fetch_of(stand)
    if ends_of(stand, fetch)[0].failure is None:
        assert end_of(stand, evict_of(stand)).failure is None
    assert end_of(stand, again).failure is None
    assert len(ends_of(stand, fetch)) == 1


def test_a_partition_that_dies_ends_its_fetch_and_the_model_is_not_blamed(stand: ColdStand) -> None:
    fetch = fetch_of(stand)
    stand.do(fetch)
    stand.kill()
    stand.wait(lambda: bool(ends_of(stand, fetch)))
    (finished,) = ends_of(stand, fetch)
    assert finished.failure is None or finished.failure.innocent
