"""Shared arenas registered with the fake driver."""

import ctypes
import os

import pytest

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.shm.arena import Arena, ArenaMap
from tests.device.cuda.fake.driver import FakeDriver

NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def test_the_gpu_reads_what_the_server_received(
    driver: FakeDriver, arena: Arena, arenas: RegisteredArenas
) -> None:
    offset = arena.alloc(100)
    assert offset is not None
    arena.view(offset, 5)[:] = b"hello"
    address = arenas.address(Span(arena.number, offset, 5))
    arena.view(offset, 1)[:] = b"J"  # written after it was registered
    target, stream = driver.allocate(16), driver.stream()
    driver.copy(target, address, 5, stream)
    assert ctypes.string_at(target, 5) == b"Jello"
    driver.destroy_stream(stream)
    driver.free(target)


def test_an_arena_is_registered_once_and_forgotten_in_order(
    driver: FakeDriver, arena: Arena, arenas: RegisteredArenas
) -> None:
    first = arenas.address(Span(arena.number, 0, 1))
    assert arenas.address(Span(arena.number, 640, 1)) == first + 640
    assert arenas.register(arena.number).device == first
    assert driver.calls["register"] == 1
    arenas.forget(arena.number)
    arenas.forget(arena.number)
    assert driver.calls["unregister"] == 1
    assert driver.leftovers() == []
    arenas.register(arena.number)  # mapped and registered anew
    assert driver.calls["register"] == 2


@pytest.mark.parametrize("offset, nbytes", [(-1, 1), (0, -1), (1 << 16, 1), (0, (1 << 16) + 1)])
def test_spans_outside_are_refused(
    arena: Arena, arenas: RegisteredArenas, offset: int, nbytes: int
) -> None:
    with pytest.raises(ValueError, match="reach out of arena"):
        arenas.address(Span(arena.number, offset, nbytes))
    assert arenas.address(Span(arena.number, 1 << 16, 0))


def test_an_arena_that_is_gone_is_refused(driver: FakeDriver, arenas: RegisteredArenas) -> None:
    gone = Arena.create(4096)
    gone.close()
    with pytest.raises(ValueError, match="is gone"):
        arenas.address(Span(gone.number, 0, 1))
    assert driver.leftovers() == []


def test_a_refused_arena_can_be_tried_again(
    driver: FakeDriver, arena: Arena, arenas: RegisteredArenas
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    driver.fail("register", NO_MEMORY, times=2)  # read-only, then writable
    with pytest.raises(CudaError, match=NO_MEMORY):
        arenas.register(arena.number)
    assert driver.leftovers() == []
    assert len(os.listdir("/proc/self/fd")) <= open_before
    assert arenas.address(Span(arena.number, 0, 8))
    assert arenas.arenas.memory(arena.number).readonly


def test_where_read_only_pages_are_refused_the_arena_is_mapped_writable(
    driver: FakeDriver, arena: Arena, arenas: RegisteredArenas
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    driver.fail("register", "CUDA_ERROR_NOT_SUPPORTED")
    arena.view(0, 2)[:] = b"ok"
    mapped = arenas.register(arena.number)
    assert ctypes.string_at(mapped.device, 2) == b"ok"
    assert not arenas.arenas.memory(arena.number).readonly
    arenas.forget(arena.number)
    assert len(os.listdir("/proc/self/fd")) <= open_before
    assert arenas.arenas.memory(arena.number).readonly


def test_a_broken_gpu_is_not_asked_again(driver: FakeDriver, arena: Arena) -> None:
    arenas = RegisteredArenas(driver, ArenaMap(os.getpid()), os.getpid())
    driver.fail("register", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        arenas.register(arena.number)
    assert driver.calls["register"] == 1


def test_closing_unregisters_everything_and_stays_mapped_where_it_cannot(
    driver: FakeDriver, arena: Arena
) -> None:
    other = Arena.create(4096)
    arenas = RegisteredArenas(driver, ArenaMap(os.getpid()), os.getpid())
    kept = arenas.register(arena.number)
    arenas.register(other.number)
    driver.fail("unregister", "CUDA_ERROR_INVALID_VALUE", skip=1)  # the last is first
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        arenas.close()
    assert len(driver.leftovers()) == 1
    assert bytes(arenas.arenas.memory(arena.number)[:1]) == b"\0"
    driver.unregister(kept)
    arenas.arenas.close()
    other.close()
