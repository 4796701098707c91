"""Readers beside a model: rates, losses and what they say of it."""

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.profile import MemoryContention
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.green_contexts.lanes import GreenLanes
from interlace.profiling.cuda.readers import (
    ReaderKernels,
    ReaderLane,
    Reading,
    pressure,
    strain,
    strains,
)
from tests.device.cuda.fake.capture import on
from tests.device.cuda.fake.driver import FakeDriver
from tests.device.cuda.fake.kernels import Launch

SIZES = {"l2": 1 << 16, "dram": 1 << 18}
rates = st.floats(0.0, 1e9)


class Memory:
    """A GPU of which readers move 1000 bytes an ms and SM, half of that while a model runs."""

    def __init__(self) -> None:
        self.model = threading.Event()

    def read(self, launch: Launch, source: int, nbytes: int, stay_ns: int, moved: int) -> None:
        now_s = time.perf_counter()
        end_s, bytes_read = now_s + stay_ns / 1e9, 0.0
        while now_s < end_s:
            part = 0.5 if self.model.is_set() else 1.0
            time.sleep(0.0005)
            now_s, before_s = time.perf_counter(), now_s
            bytes_read += part * (now_s - before_s) * 1000 * 1000 * len(launch.sms)
        launch.memory.store(moved, int(bytes_read))


@pytest.fixture
def world() -> Iterator[tuple[FakeDriver, CudaBackend, GreenLanes, Memory]]:
    driver, memory = FakeDriver(pace="threads"), Memory()
    for name in ("l2_stream", "dram_stream"):
        driver.emulate(name, memory.read, 4)
    lanes, backend = GreenLanes(driver), on(driver)
    yield driver, backend, lanes, memory
    lanes.close()
    driver.unload_kernels(backend.kernels.module)
    driver.close()  # raises if anything is left over


def test_bytes_are_counted_in_device_memory(
    world: tuple[FakeDriver, CudaBackend, GreenLanes, Memory],
) -> None:
    driver, backend, lanes, _ = world
    counters: list[int] = []

    def read(launch: Launch, source: int, nbytes: int, stay_ns: int, moved: int) -> None:
        counters.append(moved)
        launch.memory.store(moved, launch.memory.word(moved) + 1000)

    driver.emulate("l2_stream", read, 4)
    readers = ReaderKernels(backend, {"l2": 1 << 16})
    whole = lanes.carve("whole", 100)
    rates = [readers.alone(readers.kinds[0], whole, 1) for _ in range(2)]
    assert all(rate > 0 for rate in rates)
    assert driver.ipc_handle(counters[0])  # which memory of the host has none of
    assert readers._moved.value == 1000  # from zero each time
    readers.close()


def test_what_a_model_takes_is_seen_from_the_readers(
    world: tuple[FakeDriver, CudaBackend, GreenLanes, Memory],
) -> None:
    driver, backend, lanes, memory = world
    whole, own, other = (lanes.carve(str(pct), pct) for pct in (100, 24, 72))

    def model() -> float:
        memory.model.set()
        time.sleep(0.01)
        memory.model.clear()
        return 10.0

    readers = ReaderKernels(backend, SIZES)
    try:
        peaks = readers.peaks(whole, milliseconds=60)
        found = strains(readers, peaks, ReaderLane(other, 72), model, milliseconds=60)
    finally:
        readers.close()
    assert [(one.what, one.share_pct) for one in found] == [("l2", 72), ("dram", 72)]
    for one in found:
        # Half of what 72 % of the SMs move, give or take what sleeping is off by.
        assert one.taken == pytest.approx(0.36, abs=0.15)
        assert one.read == pytest.approx(0.36, abs=0.15)
        assert one.slowdown == pytest.approx(1.0)
    assert {ran.sms for ran in driver.trace if ran.kernel == "dram_stream"} == {
        driver.sms_of(whole.stream),
        driver.sms_of(other.stream),
    }
    assert not driver.sms_of(own.stream) & driver.sms_of(other.stream)


def test_a_model_too_slow_to_end_beside_a_reader_says_nothing(
    world: tuple[FakeDriver, CudaBackend, GreenLanes, Memory],
) -> None:
    _, backend, lanes, _ = world
    other = lanes.carve("other", 48)

    def model() -> float:
        time.sleep(0.03)
        return 30.0

    readers = ReaderKernels(backend, SIZES)
    try:
        peaks = {"l2": 1.0, "dram": 1.0}
        assert strains(readers, peaks, ReaderLane(other, 48), model, milliseconds=5) == ()
    finally:
        readers.close()


@given(rates, rates, st.floats(0.01, 1e3), rates, st.floats(0.01, 1e3))
def test_parts_are_parts(
    peak: float, alone: float, alone_ms: float, beside: float, beside_ms: float
) -> None:
    one = strain("l2", 50, peak, alone, alone_ms, Reading(beside, beside_ms))
    assert 0.0 <= one.read <= 1.0
    assert 0.0 <= one.taken <= 1.0
    assert one.read + one.taken <= 1.0 + 1e-9 or beside > alone
    assert one.slowdown > 0.0


@given(rates.filter(bool), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_more_a_reader_loses_the_more_the_model_takes(
    peak: float, first: float, second: float
) -> None:
    less, more = sorted((first, second))
    taken = [
        strain("l2", 50, peak, peak, 1.0, Reading(peak * (1.0 - lost), 1.0)).taken
        for lost in (less, more)
    ]
    assert taken[0] <= taken[1] + 1e-12


def test_pressure_is_the_largest_loss_of_each_kind() -> None:
    seen = [
        MemoryContention("l2", share, 0.5, taken, 1.0) for share, taken in ((25, 0.1), (75, 0.3))
    ]
    assert pressure(seen) is None
    assert pressure([*seen, MemoryContention("dram", 75, 0.2, 0.6, 1.5)]) == (0.3, 0.6)
