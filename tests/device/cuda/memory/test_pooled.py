"""Device memory in slabs: nothing overlaps, nothing is lost, and the driver is seldom asked."""

import ctypes
from collections.abc import Iterator

import pytest

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.memory import weights_memory
from interlace.device.cuda.memory.mapped import PooledDriver
from interlace.device.cuda.memory.weights_memory import TouchedPages
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import FakeDriver

MIB = 1 << 20
SMALL = H100._replace(memory_bytes=64 * MIB)


def test_models_come_and_go_without_the_driver() -> None:
    driver = FakeDriver(SMALL)
    pool = PooledDriver(driver)
    whole = pool.memory()
    assert whole == driver.memory()._replace(free_bytes=SMALL.memory_bytes)
    asked = driver.calls["allocate"]
    for _ in range(5):
        addresses = [pool.allocate(nbytes) for nbytes in (MIB, 100, 2 * MIB)]
        assert whole.free_bytes - pool.memory().free_bytes == 3 * MIB + 512
        for address in addresses:
            pool.free(address)
    assert (driver.calls["allocate"], driver.calls["free"]) == (asked, 0)
    assert pool.memory() == whole
    pool.close_slabs()
    driver.close()


def test_slabs_are_added_and_given_back_when_that_is_asked_for() -> None:
    driver = FakeDriver(SMALL)
    pool = PooledDriver(driver)
    kept, large = pool.allocate(100), pool.allocate(40 * MIB)
    rest = pool.allocate(pool.memory().free_bytes - 6 * MIB)  # less than a part of what is left
    with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
        pool.allocate(20 * MIB)
    pool.free(large)
    before = driver.memory().free_bytes
    pool.trim()
    assert driver.memory().free_bytes >= before + 40 * MIB
    for address in (kept, rest):
        pool.free(address)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        pool.free(kept)
    pool.close_slabs()
    driver.close()


def test_nothing_of_a_slab_is_shared_by_its_begin() -> None:
    driver = FakeDriver(SMALL)
    pool = PooledDriver(driver)
    address = pool.allocate(100)
    with pytest.raises(CudaError, match="not shared"):
        pool.ipc_handle(address)
    pool.close_slabs()
    driver.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_memory, "_PART_BYTES", MIB)
    monkeypatch.setattr(weights_memory, "_GROWS_S", 0.2)
    monkeypatch.setattr(weights_memory, "_LOOK_S", 0.01)


def test_all_of_it_is_zero_and_given_back(driver: FakeDriver) -> None:
    nbytes = 3 * MIB + 5000
    pages = TouchedPages(driver)
    mapped = pages.allocate_mapped(nbytes)
    assert ctypes.string_at(mapped.host, nbytes) == bytes(nbytes)
    pages.free_mapped(mapped)


def test_memory_that_comes_while_it_is_used_is_waited_for(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine's grows: at first there is none for the second part."""
    enough = 1024 * MIB
    said: Iterator[int] = iter([enough, 0, 0, enough, enough])
    monkeypatch.setattr(weights_memory, "available_bytes", lambda: next(said))
    pages = TouchedPages(driver)
    pages.free_mapped(pages.allocate_mapped(3 * MIB))
    assert next(said, None) is None


def test_memory_that_does_not_come_is_an_error_and_takes_nothing(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_memory, "available_bytes", lambda: 100 * MIB)
    pages = TouchedPages(driver)
    with pytest.raises(OSError, match="3 MiB of page-locked memory do not fit: 100 MiB are"):
        pages.allocate_mapped(3 * MIB)
