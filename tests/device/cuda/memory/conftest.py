"""A fake GPU, and what is built on it; closing it fails the test if anything is left over."""

import os
from collections.abc import Iterator

import pytest

from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.shm.arena import Arena, ArenaMap
from tests.device.cuda.fake.driver import FakeDriver


@pytest.fixture
def mapped(driver: FakeDriver) -> Iterator[MappedMemory]:
    memory = MappedMemory(driver)
    yield memory
    memory.close()


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
