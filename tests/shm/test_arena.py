"""Arenas across processes: one writes, the others see the same bytes, and nothing is left."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from interlace.core.tensor import Span
from interlace.shm.arena import Arena, ArenaMap

SIZE = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(SIZE)
    yield made
    made.close()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def resident_bytes(arena: Arena) -> int:
    return os.stat(f"/proc/self/fd/{arena.number & 0xFFFF}").st_blocks * 512


def test_a_child_can_be_the_writer(arena: Arena) -> None:
    code = (
        "import sys; from interlace.shm.arena import Arena; pid, number = map(int, sys.argv[1:]); "
        "arena = Arena.adopt(pid, number); at = arena.alloc(3); arena.view(at, 3)[:] = b'abc'; "
        "print(at)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(os.getpid()), str(arena.number)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert bytes(arena.view(int(shown.stdout), 3)) == b"abc"


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_must_be_positive(size: int) -> None:
    with pytest.raises(ValueError, match="positive size"):
        Arena.create(size)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (0, SIZE + 1), (SIZE, 1), (5, -1)])
def test_views_stay_inside(arena: Arena, offset: int, nbytes: int) -> None:
    arenas = ArenaMap(os.getpid())
    with pytest.raises(ValueError, match="reach out of arena"):
        arena.view(offset, nbytes)
    with pytest.raises(ValueError, match="reach out of arena"):
        arenas.view(Span(arena.number, offset, nbytes))
    arenas.close()


def test_readers_cannot_write_and_an_added_arena_is_not_mapped_again(arena: Arena) -> None:
    arenas = ArenaMap(os.getpid())
    assert arenas.view(Span(arena.number, 0, 10)).readonly
    arenas.forget(arena.number)
    arenas.add(arena)
    assert not arenas.view(Span(arena.number, 0, 10)).readonly
    arenas.forget(arena.number)
    arenas.forget(arena.number)
    arena.view(0, 1)[:] = b"x"  # forgetting it did not unmap what is not its own
    assert bytes(arenas.view(Span(arena.number, 0, 1))) == b"x"
    arenas.close()


def test_who_watches_hears_of_each_arena_that_is_forgotten_once() -> None:
    first, second, arenas = Arena.create(SIZE), Arena.create(SIZE), ArenaMap(os.getpid())
    heard: list[int] = []
    arenas.watchers.append(heard.append)
    arenas.add(first)
    arenas.view(Span(second.number, 0, 1))
    for number in (first.number, first.number, 12345):
        arenas.forget(number)
    assert heard == [first.number]
    arenas.forget(second.number)
    assert heard == [first.number, second.number]
    arenas.add(first)
    arenas.close()
    assert len(heard) == 2, "at the end there is nobody to tell"
    first.close()
    second.close()


def test_a_closed_arena_is_gone_for_new_readers() -> None:
    arena = Arena.create(SIZE)
    number = arena.number
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="is gone"):
        ArenaMap(os.getpid()).view(Span(number, 0, 1))


def test_a_number_never_names_another_arena() -> None:
    first = Arena.create(SIZE)
    number = first.number
    first.close()
    second = Arena.create(SIZE)
    assert second.number & 0xFFFF == number & 0xFFFF  # the descriptor is used again
    with pytest.raises(ValueError, match="is gone"):
        Arena.adopt(os.getpid(), number)
    second.close()


def test_views_outlive_the_arena() -> None:
    arena = Arena.create(SIZE)
    arena.view(0, 3)[:] = b"abc"
    held = np.frombuffer(arena.view(0, 3), np.uint8)
    arena.close()
    assert held.tobytes() == b"abc"


def test_memory_is_given_back(arena: Arena) -> None:
    kept, freed = arena.alloc(1 << 18), arena.alloc(1 << 18)
    assert kept is not None and freed is not None
    for offset in (kept, freed):
        arena.view(offset, 1 << 18)[:] = b"x" * (1 << 18)
    assert resident_bytes(arena) == 1 << 19
    arena.free(freed)
    arena.trim()
    assert resident_bytes(arena) == 1 << 18
    assert bytes(arena.view(kept, 2)) == b"xx"
    arena.wipe()
    assert resident_bytes(arena) == 0


def test_memory_is_taken_ahead(arena: Arena) -> None:
    arena.touch(1 << 18)
    assert resident_bytes(arena) == 1 << 18
    arena.touch()
    assert resident_bytes(arena) == arena.size_bytes


def test_trimming_a_part_leaves_the_rest(arena: Arena) -> None:
    whole = arena.alloc(1 << 20)
    assert whole is not None
    arena.view(whole, 1 << 20)[:] = b"x" * (1 << 20)
    arena.free(whole)
    arena.trim(whole, whole + (1 << 18))
    assert resident_bytes(arena) == (1 << 20) - (1 << 18)
    arena.trim(whole + (1 << 18))
    assert resident_bytes(arena) == 0


def test_no_descriptor_is_left() -> None:
    before = descriptors()
    arena = Arena.create(SIZE)
    arenas = ArenaMap(os.getpid())
    arenas.view(Span(arena.number, 0, 8))
    Arena.adopt(os.getpid(), arena.number).close()
    arenas.close()
    arena.close()
    assert descriptors() == before
