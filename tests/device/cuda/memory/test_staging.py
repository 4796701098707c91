"""Inputs staged in rings on the fake GPU: content, order, slots in use, errors."""

import ctypes
import os
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.driver.kernels import load_kernels
from interlace.device.cuda.green_contexts.lanes import GreenLanes
from interlace.device.cuda.memory.mapped import GRANULE_BYTES, MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.memory.staging import DeviceRings, StagedPart
from interlace.shm.arena import Arena, ArenaMap
from tests.device.cuda.fake.driver import IMAGE, FakeDriver

REFUSED = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"


class Pool:
    """Rings, the arena that inputs come from, and the lane that copies them."""

    def __init__(self, pace: str = "at once") -> None:
        self.driver = FakeDriver(pace=pace)
        self.kernels = load_kernels(self.driver, IMAGE)
        self.memory = MappedMemory(self.driver)
        self.arena = Arena.create(1 << 16)
        self.arenas = RegisteredArenas(self.driver, ArenaMap(os.getpid()), os.getpid())
        self.lanes = GreenLanes(self.driver)
        self.lane = self.lanes.aside()
        self.flag = self.memory.take(8)
        self.rings = DeviceRings(
            self.driver, self.kernels, self.memory, self.arenas, self.lane, self.flag.device
        )
        self.serial = count(1)

    def put(self, content: bytes) -> Span:
        offset = self.arena.alloc(max(1, len(content)))
        assert offset is not None
        self.arena.view(offset, len(content))[:] = content
        return Span(self.arena.number, offset, len(content))

    def stage(self, slot: int, *rows: bytes, slots: int = 4, model: str = "m") -> int:
        return self.stage_parts(model, slot, slots, len(rows), [("x", self.put(b"".join(rows)))])

    def stage_parts(
        self, model: str, slot: int, slots: int, rows: int, inputs: list[tuple[str, Span]]
    ) -> int:
        """Copy one request's inputs and have it told."""
        self.rings.copy(model, slot, slots, [StagedPart(rows, inputs)])
        return self.rings.tell()

    def told(self) -> int:
        """The flag as the host reads it."""
        return ctypes.c_uint64.from_address(self.flag.host).value

    def read(self, slot: int, rows: int, row_bytes: int, model: str = "m") -> list[bytes]:
        """A batch from its begin to its end."""
        (addresses,) = self.rings.begin_batch(model, slot, rows)
        found = [ctypes.string_at(address, row_bytes) for address in addresses]
        self.rings.end_batch(model, slot, rows)
        return found

    def close(self) -> None:
        self.rings.close()
        self.lanes.close()
        self.arenas.close()
        self.arenas.arenas.close()
        self.memory.close()
        self.driver.unload_kernels(self.kernels.module)
        self.driver.close()
        self.arena.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def held() -> Iterator[Pool]:
    pool = Pool("held")
    yield pool
    pool.driver.run(pool.lane.stream)
    pool.close()


def test_many_requests_are_one_copy_an_input(pool: Pool) -> None:
    parts = [
        StagedPart(
            1 + n % 2,
            [("x", pool.put(b"%02d" % n * (1 + n % 2))), ("y", pool.put(b"!" * (1 + n % 2)))],
        )
        for n in range(20)
    ]
    pool.driver.calls.clear()
    pool.rings.copy("m", 3, 40, parts)
    assert pool.told() == 0
    assert pool.rings.tell() == 1
    assert pool.driver.calls["launch"] == 3  # two inputs and the signal
    pool.rings.ended(pool.told())
    x, y = pool.rings.begin_batch("m", 3, 30)
    wanted = [b"%02d" % n for n in range(20) for _ in range(1 + n % 2)]
    assert [ctypes.string_at(address, 2) for address in x] == wanted
    assert [ctypes.string_at(address, 1) for address in y] == [b"!"] * 30
    pool.rings.end_batch("m", 3, 30)


def test_requests_of_several_sizes_are_not_copied_as_one(pool: Pool) -> None:
    parts = [StagedPart(1, [("x", pool.put(text))]) for text in (b"aa", b"bbb")]
    with pytest.raises(ValueError, match="several sizes"):
        pool.rings.copy("m", 0, 4, parts)
    assert pool.stage(0, b"aa") == 1


def test_a_ring_takes_another_shape_only_while_idle(held: Pool) -> None:
    held.stage(0, b"aa")
    with pytest.raises(ValueError, match="are in use"):
        held.stage(1, b"aaaa")
    with pytest.raises(ValueError, match="are in use"):
        held.stage(1, b"aa", slots=8)
    with pytest.raises(ValueError, match="are in use"):
        held.rings.forget("m")
    held.driver.run(held.lane.stream)
    held.rings.ended(1)
    assert held.stage(5, b"long", slots=8) == 2
    held.driver.run(held.lane.stream)
    held.rings.ended(2)
    assert held.read(5, 1, 4) == [b"long"]
    held.rings.forget("m")
    held.rings.forget("m")
    with pytest.raises(ValueError, match="nothing of model m"):
        held.rings.begin_batch("m", 5, 1)
    held.rings.end_batch("m", 5, 1)


def test_impossible_stages_change_nothing(pool: Pool) -> None:
    for slot, rows in ((-1, [b"a"]), (4, [b"a"]), (3, [b"a", b"b"])):
        with pytest.raises(ValueError, match="rows in 4 slots"):
            pool.stage(slot, *rows)
    span = pool.put(b"abc")
    with pytest.raises(ValueError, match="3 bytes in 2 rows"):
        pool.stage_parts("m", 0, 4, 2, [("x", span)])
    with pytest.raises(ValueError, match="3 bytes in 0 rows"):
        pool.stage_parts("m", 0, 4, 0, [("x", span)])
    with pytest.raises(ValueError, match="reach out of arena"):
        pool.stage_parts("m", 0, 4, 1, [("x", Span(pool.arena.number, 1 << 16, 8))])
    assert pool.stage(3, b"a") == 1
    assert pool.told() == 1


def test_a_refused_copy_frees_its_slots(pool: Pool) -> None:
    for earlier in (0, 1):  # the copy, then the signal
        pool.driver.fail("launch", REFUSED, skip=earlier)
        with pytest.raises(CudaError, match=REFUSED):
            pool.stage(0, b"aa")
        pool.driver._faults._planned.clear()
    assert pool.stage(0, b"bb") == 1
    pool.rings.ended(1)
    assert pool.read(0, 1, 2) == [b"bb"]


def test_no_memory_for_a_ring_is_said_and_can_be_tried_again(pool: Pool) -> None:
    used = pool.memory.used_bytes
    for call in ("allocate", "allocate_mapped"):
        slots = 4 if call == "allocate" else 1 << 19  # more words than the slab has
        pool.driver.fail(call, "CUDA_ERROR_OUT_OF_MEMORY")
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            pool.stage(0, b"aa", slots=slots)
        assert pool.memory.used_bytes == used
    assert pool.stage(0, b"aa") == 1


def test_closing_tries_all_rings(pool: Pool) -> None:
    for model in "abc":
        pool.rings.ended(pool.stage(0, b"x", model=model))
    pool.driver.fail("free", "CUDA_ERROR_INVALID_VALUE", skip=1)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        pool.rings.close()
    left = [one.begin for one in pool.driver._memory._ranges if one.live and one.kind == "device"]
    assert len(left) == 1
    pool.driver.free(left[0])
    assert pool.memory.used_bytes == GRANULE_BYTES  # the flag


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("stage"), st.integers(0, 5), st.integers(1, 3)),
            st.tuples(st.just("run"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("begin"), st.integers(0, 5), st.integers(1, 3)),
            st.tuples(st.just("end"), st.integers(0, 3), st.just(0)),
        ),
        max_size=25,
    )
)
def test_a_batch_reads_what_was_last_staged_until_it_ends(
    steps: list[tuple[str, int, int]],
) -> None:
    pool = Pool("held")
    slots, wanted = 6, [b"\0\0"] * 6
    batches: list[tuple[int, list[int], list[bytes]]] = []
    for what, at, rows in steps:
        if what == "stage":
            texts = [b"%02d" % (next(pool.serial) % 100) for _ in range(rows)]
            try:
                pool.stage(at, *texts, slots=slots)
            except ValueError:
                continue
            wanted[at : at + rows] = texts
        elif what == "run":
            pool.driver.run(pool.lane.stream, at)
            pool.rings.ended(pool.told())
        elif what == "begin":
            try:
                (addresses,) = pool.rings.begin_batch("m", at, rows)
            except ValueError:
                continue
            batches.append((at, list(addresses), wanted[at : at + rows]))
        elif at < len(batches):
            slot, addresses, _ = batches.pop(at)
            pool.rings.end_batch("m", slot, len(addresses))
        for _, addresses, content in batches:
            staged = [text for text in content if text != b"\0\0"]
            read = [ctypes.string_at(address, 2) for address in addresses]
            assert [text for text in read if text in staged] == staged
    pool.driver.run(pool.lane.stream)
    pool.close()
