"""The fake GPU itself: it fails where a real one does, and loudly where a real one would not."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from interlace.device.cuda.driver.api import MappedBlock
from interlace.device.cuda.driver.errors import CudaError
from tests.device.cuda.driver.drivers import FAKE, Rig
from tests.device.cuda.fake import FakeCapturer, FakeDriver, Misuse

OPEN = """
import ctypes, sys
from tests.device.cuda.fake import FakeDriver
driver = FakeDriver()
address = driver.ipc_open(bytes.fromhex(sys.argv[1]))
assert ctypes.string_at(address, 5) == b"heavy"
ctypes.memmove(address, b"light", 5)
driver.ipc_close(address)
driver.close()
"""


def host(mapped: MappedBlock) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * (mapped.nbytes // 8)).from_address(mapped.host)


# -------------------------------------------------------------------------------- accounts


@pytest.mark.parametrize(
    "leave",
    [
        lambda driver: driver.allocate(10),
        lambda driver: driver.allocate_mapped(10),
        lambda driver: driver.stream(),
        lambda driver: driver.event(),
        lambda driver: driver.green(driver.split(8).atoms[:1]),
        lambda driver: driver.load_kernels(b"fake cubin"),
    ],
)
def test_whatever_is_left_over_is_told(leave: Callable[[FakeDriver], object]) -> None:
    driver = FakeDriver()
    leave(driver)
    with pytest.raises(Misuse):
        driver.close()


def test_memory_of_others_counts() -> None:
    driver = FakeDriver()
    driver.others(driver.memory().total_bytes - 1000)
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        driver.allocate(2000)
    driver.free(driver.allocate(512))
    with pytest.raises(CudaError):
        driver.free(12345)
    driver.close()


# --------------------------------------------------------------------------------- addresses


@pytest.fixture
def rig() -> Rig:
    return Rig(FAKE)


def broken_by(rig: Rig, source: int, target: int, rows: int = 1) -> str:
    """What the driver says after a kernel copied eight bytes from there to there."""
    place, count = rig.words(target), rig.words(rows)
    with pytest.raises(CudaError) as caught:
        rig.launch("publish", source, place.device, count.device, 8)
    assert caught.value.sticky
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        rig.driver.memory()
    return str(caught.value)


def test_a_freed_address_is_never_used_again(rig: Rig) -> None:
    address = rig.driver.allocate(64)
    rig.driver.free(address)
    assert rig.driver.allocate(64) != address
    assert "given back" in broken_by(rig, address, rig.words(0).device)


def test_kernels_do_not_see_host_addresses(rig: Rig) -> None:
    words = rig.words(0)
    assert words.host != words.device
    assert "host's address" in broken_by(rig, words.host, words.device)


def test_arenas_must_be_registered(rig: Rig) -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, mmap.PAGESIZE)
    with mmap.mmap(fd, mmap.PAGESIZE) as arena:
        address = np.frombuffer(arena, np.uint8).ctypes.data
        assert "not registered" in broken_by(rig, address, rig.words(0).device)
    os.close(fd)


def test_what_is_registered_for_reading_is_not_written(rig: Rig) -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, mmap.PAGESIZE)
    reader = np.frombuffer(mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ), np.uint8)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        rig.driver.register(reader.ctypes.data, reader.nbytes)
    mapped = rig.driver.register(reader.ctypes.data, reader.nbytes, read_only=True)
    with pytest.raises(CudaError, match="ALREADY_REGISTERED"):
        rig.driver.register(reader.ctypes.data, reader.nbytes, read_only=True)
    assert "reading only" in broken_by(rig, rig.words(0).device, mapped.device)
    os.close(fd)


def test_no_kernel_reaches_over_an_end(rig: Rig) -> None:
    address = rig.driver.allocate(512)
    assert "over the end" in broken_by(rig, address, rig.words(*[0] * 200).device, rows=65)


def test_tensors_of_the_framework_are_device_memory(rig: Rig) -> None:
    tensor, target = torch.arange(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    place, count = rig.words(target.data_ptr()), rig.words(8)
    rig.launch("publish", tensor.data_ptr(), place.device, count.device, 8)
    assert torch.equal(tensor, target)
    rig.close()


def test_another_process_opens_an_allocation() -> None:
    driver = FakeDriver()
    address = driver.allocate(8)
    ctypes.memmove(address, b"heavy", 5)
    handle = driver.ipc_handle(address)
    command = [sys.executable, "-c", OPEN, handle.hex()]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert ctypes.string_at(address, 5) == b"light"
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        driver.ipc_open(handle)
    driver.free(address)
    driver.close()


# ------------------------------------------------------------------------------------ order


def test_held_work_waits_for_the_test() -> None:
    driver = FakeDriver(pace="held")
    first, second = driver.stream(), driver.stream()
    event = driver.event()
    driver.record(event, first)
    driver.wait(second, event)
    behind = driver.event()
    driver.record(behind, second)
    assert driver.run(second) == 0  # it waits for the first
    assert not driver.ended(event) and not driver.ended(behind)
    assert not driver.idle(first)
    assert driver.run(first) == 1
    assert driver.idle(first) and not driver.idle(second)
    assert driver.ended(event) and not driver.ended(behind)
    assert driver.run(second) == 2
    assert driver.ended(behind)
    with pytest.raises(Misuse, match="with work in it"):
        driver.record(event, first)
        driver.destroy_stream(first)


def test_one_stream_is_held_and_the_others_go_on() -> None:
    driver = FakeDriver()
    first, second, event = driver.stream(), driver.stream(), driver.event()
    driver.hold(first)
    driver.record(event, first)
    assert not driver.ended(event)
    other = driver.event()
    driver.record(other, second)
    assert driver.ended(other)
    driver.let_go(first)
    assert driver.ended(event)


def test_a_green_context_outlives_its_streams() -> None:
    driver = FakeDriver()
    green = driver.green(driver.split(8).atoms[:1])
    driver.stream(green)
    with pytest.raises(Misuse, match="before its streams"):
        driver.destroy_green(green)


def test_atoms_of_two_splits_do_not_mix() -> None:
    driver = FakeDriver()
    mixed = [driver.split(8).atoms[0], driver.split(8).atoms[1]]
    with pytest.raises(CudaError, match="RESOURCE"):
        driver.green(mixed)
    driver.grant = lambda sms: sms - 2
    assert driver.green(driver.split(16).atoms[:2]).sms == 30


# ------------------------------------------------------------------------------------ faults


def test_a_planned_failure_comes_once() -> None:
    driver = FakeDriver()
    driver.fail("event", "CUDA_ERROR_OUT_OF_MEMORY", skip=1)
    driver.destroy_event(driver.event())
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        driver.event()
    driver.destroy_event(driver.event())
    driver.close()
    with pytest.raises(ValueError, match="no call"):
        driver.fail("evnet", "CUDA_ERROR_UNKNOWN")


def test_a_failure_of_the_gpu_shows_at_a_later_call() -> None:
    driver = FakeDriver()
    stream, event, unused = driver.stream(), driver.event(), driver.event()
    driver.fail("run", "CUDA_ERROR_ECC_UNCORRECTABLE")
    driver.record(event, stream)
    calls: tuple[Callable[[], object], ...] = (
        driver.memory,
        lambda: driver.ended(event),
        lambda: driver.idle(stream),
        driver.stream,
    )
    for call in calls:
        with pytest.raises(CudaError, match="ECC") as caught:
            call()
        assert caught.value.sticky
    assert driver.ended(unused)  # as the real driver says of an event that was never recorded
    driver.close()  # what is lost with the GPU is no leak


# ------------------------------------------------------------------------------------ graphs


class Doubler:
    """A model of one tensor under capture: gathered, doubled, published, signalled."""

    def __init__(self, rig: Rig, stream: int, pool: object | None = None) -> None:
        self.rig = rig
        self.words = rig.words(2, 1, *[0] * 5)  # rows, sequence, target, table of 4
        self.flag = rig.words(0)
        self.inputs = rig.words(*range(10, 18))
        self.outputs = rig.words(*[0] * 8)
        self.place = torch.zeros(4, dtype=torch.int64)
        self.stream = stream
        host(self.words)[2] = self.outputs.device
        for row in range(4):
            host(self.words)[3 + row] = self.inputs.device + 8 * row
        self.capturer = FakeCapturer(rig.driver)  # type: ignore[arg-type]
        self.graph = self.capturer.capture(stream, pool, self.body)

    def body(self) -> None:
        word, kernels = self.words.device, self.rig.kernels
        gathered = (word + 24, word, self.place.data_ptr(), 8, 4)
        self.launch(kernels.gather_rows, *gathered)
        doubled = self.place * 2
        self.launch(kernels.publish, doubled.data_ptr(), word + 16, word, 8)
        self.launch(kernels.signal, self.flag.device, word + 8)

    def launch(self, kernel: int, *words: int) -> None:
        self.rig.driver.launch(kernel, (1, 1, 1), (32, 1, 1), self.stream, words)


def test_a_graph_reads_its_parameters_when_it_runs(rig: Rig) -> None:
    model = Doubler(rig, rig.stream)
    fake = rig.driver
    assert isinstance(fake, FakeDriver) and not fake.trace
    for rows, sequence in ((2, 1), (4, 2), (1, 3)):
        host(model.words)[:2] = [rows, sequence]
        host(model.outputs)[:] = [0] * 8
        fake.launch_graph(model.graph.executable, rig.stream)
        wanted = [20, 22, 24, 26][:rows]
        assert list(host(model.outputs)) == wanted + [0] * (8 - rows)
        assert host(model.flag)[0] == sequence
        assert model.place.tolist()[rows:] == [0] * (4 - rows)
    assert [one.kernel for one in fake.trace] == ["gather_rows", "publish", "signal"] * 3
    assert fake.memory().free_bytes < fake.memory().total_bytes
    model.graph.close()
    with pytest.raises(CudaError, match="INVALID_HANDLE"):
        fake.launch_graph(model.graph.executable, rig.stream)
    rig.close()


def test_a_graph_keeps_the_sms_of_its_capture(rig: Rig) -> None:
    driver = rig.driver
    assert isinstance(driver, FakeDriver)
    green = driver.green(driver.split(8).atoms[3:5])
    lane = driver.stream(green)
    model = Doubler(rig, lane)
    driver.launch_graph(model.graph.executable, rig.stream)
    assert {one.sms for one in driver.trace} == {frozenset(range(24, 40))}
    model.graph.close()
    driver.destroy_stream(lane)
    driver.destroy_green(green)
    rig.close()


def test_a_body_that_changes_its_launches_is_found(rig: Rig) -> None:
    model = Doubler(rig, rig.stream)
    model.flag = rig.words(0)  # a graph would go on writing to the old one
    rig.driver.launch_graph(model.graph.executable, rig.stream)
    with pytest.raises(CudaError, match="keeps what was captured"):
        rig.driver.synchronize(rig.stream)
    with pytest.raises(Misuse, match="keeps what was captured"):
        rig.driver.close()


def test_nothing_is_allocated_or_run_elsewhere_in_a_capture(rig: Rig) -> None:
    driver, one = rig.driver, (1, 1, 1)
    assert isinstance(driver, FakeDriver)
    capturer, other = FakeCapturer(driver), driver.stream()
    words = (rig.words(0).device, rig.words(1).device)
    with pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"):
        capturer.capture(rig.stream, None, lambda: driver.free(driver.allocate(1)))
    with pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"):
        capturer.capture(rig.stream, None, lambda: driver.synchronize(other))
    with pytest.raises(Misuse, match="during a capture"):
        capturer.capture(
            rig.stream, None, lambda: driver.launch(rig.kernels.signal, one, one, other, words)
        )
    driver.launch(rig.kernels.signal, one, one, rig.stream, words)  # the capture is over
    driver.destroy_stream(other)
    rig.close()


def test_graphs_of_one_pool_never_run_side_by_side() -> None:
    rig = Rig(FAKE)
    driver = rig.driver
    assert isinstance(driver, FakeDriver)
    first = Doubler(rig, rig.stream)
    second = Doubler(rig, rig.stream, first.graph.pool)
    assert second.graph.pool is first.graph.pool
    other = driver.stream()
    with pytest.raises(Misuse, match="pool belongs"):
        FakeCapturer(driver).capture(other, first.graph.pool, lambda: None)
    driver.hold(rig.stream)
    driver.launch_graph(first.graph.executable, rig.stream)
    driver.launch_graph(second.graph.executable, rig.stream)
    with pytest.raises(Misuse, match="at once"):
        driver.launch_graph(second.graph.executable, other)
    with pytest.raises(Misuse, match="while it runs"):
        first.graph.close()


def test_kernels_take_what_they_take(rig: Rig) -> None:
    one = (1, 1, 1)
    for words in ((1, 2, 3), (1, 1 << 64), (-1, 2)):
        with pytest.raises(Misuse, match="takes 2 words"):
            rig.driver.launch(rig.kernels.signal, one, one, rig.stream, words)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        rig.driver.launch(rig.kernels.signal, one, (2048, 1, 1), rig.stream, (1, 2))
    rig.close()
