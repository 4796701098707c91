"""Page-locked memory that is touched part by part, as far as there is memory."""

import ctypes
from collections.abc import Iterator

import pytest

from interlace.device.cuda.memory import weights_memory
from interlace.device.cuda.memory.weights_memory import TouchedPages, available_bytes
from tests.device.cuda.fake.driver import FakeDriver

_MIB = 1 << 20


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_memory, "_PART_BYTES", _MIB)
    monkeypatch.setattr(weights_memory, "_GROWS_S", 0.2)
    monkeypatch.setattr(weights_memory, "_LOOK_S", 0.01)


def test_all_of_it_is_zero_and_given_back(driver: FakeDriver) -> None:
    nbytes = 3 * _MIB + 5000
    pages = TouchedPages(driver)
    mapped = pages.allocate_mapped(nbytes)
    assert ctypes.string_at(mapped.host, nbytes) == bytes(nbytes)
    pages.free_mapped(mapped)


def test_memory_that_comes_while_it_is_used_is_waited_for(driver: FakeDriver) -> None:
    """A virtual machine's grows: at first there is none for the second part."""
    enough = 1024 * _MIB
    said: Iterator[int] = iter([enough, 0, 0, enough, enough])
    pages = TouchedPages(driver, lambda: next(said))
    pages.free_mapped(pages.allocate_mapped(3 * _MIB))
    assert next(said, None) is None


def test_memory_that_does_not_come_is_an_error_and_takes_nothing(driver: FakeDriver) -> None:
    pages = TouchedPages(driver, lambda: 100 * _MIB)
    with pytest.raises(OSError, match="3 MiB of page-locked memory do not fit: 100 MiB are"):
        pages.allocate_mapped(3 * _MIB)


def test_the_kernel_says_what_is_available() -> None:
    found = available_bytes()
    assert found is None or found > _MIB
