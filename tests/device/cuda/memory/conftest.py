"""A fake GPU, and what is built on it; closing it fails the test if anything is left over."""

import os
from collections.abc import Iterator

import pytest

from interlace.device.cuda.driver.kernels import Kernels, load_kernels
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.shm.arena import Arena, ArenaMap
from tests.device.cuda.fake.driver import IMAGE, FakeDriver


@pytest.fixture
def held() -> Iterator[FakeDriver]:
    """Work waits in its stream until it is told to run."""
    driver = FakeDriver(pace="held")
    yield driver
    driver.close()


@pytest.fixture
def mapped(driver: FakeDriver) -> Iterator[MappedMemory]:
    memory = MappedMemory(driver)
    yield memory
    memory.close()


@pytest.fixture
def kernels(driver: FakeDriver) -> Iterator[Kernels]:
    kernels = load_kernels(driver, IMAGE)
    yield kernels
    driver.unload_kernels(kernels.module)


@pytest.fixture
def arena() -> Iterator[Arena]:
    """What stands for the main process's arena."""
    arena = Arena.create(1 << 16)
    yield arena
    arena.close()


@pytest.fixture
def arenas(driver: FakeDriver, arena: Arena) -> Iterator[RegisteredArenas]:
    arenas = RegisteredArenas(driver, ArenaMap(os.getpid()), os.getpid())
    yield arenas
    arenas.close()
    arenas.arenas.close()
