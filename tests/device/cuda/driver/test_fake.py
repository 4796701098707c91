"""The fake GPU itself: it fails where a real one does, and loudly where a real one would not."""

import ctypes
import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from interlace.device.cuda.driver.api import CudaError, MappedBlock
from tests.device.cuda.driver.drivers import FAKE, Rig
from tests.device.cuda.fake import FakeCapturer, FakeDriver, Misuse


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


def test_a_green_context_outlives_its_streams() -> None:
    driver = FakeDriver()
    green = driver.green(driver.split(8).atoms[:1])
    driver.stream(green)
    with pytest.raises(Misuse, match="before its streams"):
        driver.destroy_green(green)


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
