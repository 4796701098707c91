"""Mapped memory in pieces, and the parameter block of a program."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CudaError, MappedBlock
from interlace.device.cuda.driver.kernels import load_kernels
from interlace.device.cuda.memory import mapped
from interlace.device.cuda.memory.mapped import MappedMemory, Slabs
from interlace.device.cuda.memory.parameters import BatchParameters, TransferKernels
from tests.device.cuda.fake.capture import FakeCapturer
from tests.device.cuda.fake.driver import IMAGE, FakeDriver

Result = TypeVar("Result")
NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def test_pieces_are_apart_and_seen_from_both_sides(
    driver: FakeDriver, mapped: MappedMemory
) -> None:
    pieces = [mapped.take(nbytes) for nbytes in (8, 100, 64, 4000)]
    assert driver.calls["allocate_mapped"] == 1
    for number, piece in enumerate(pieces):
        assert piece.host % 64 == piece.device % 64 == 0
        ctypes.memset(piece.host, number + 1, piece.nbytes)
    for number, piece in enumerate(pieces):
        seen = ctypes.string_at(piece.device, piece.nbytes)
        assert seen == bytes([number + 1]) * piece.nbytes
    for piece in pieces:
        mapped.give_back(piece)
    assert mapped.used_bytes == 0


def test_slabs_grow_with_what_is_asked_for_and_are_used_again(driver: FakeDriver) -> None:
    memory = MappedMemory(driver, slab_bytes=1 << 12)
    large = memory.take(8000)
    small = memory.take(64)
    assert driver.calls["allocate_mapped"] == 2
    memory.give_back(large)
    assert memory.take(4096).nbytes == 4096
    assert memory.take(4096).nbytes == 4096
    assert driver.calls["allocate_mapped"] == 2
    memory.give_back(small)
    with pytest.raises(ValueError, match="twice"):
        memory.give_back(small)
    with pytest.raises(ValueError, match="never taken"):
        memory.give_back(MappedBlock(1, 1, 1))
    memory.close()
    assert driver.leftovers() == []


def test_two_threads_are_never_inside_the_allocator_at_once(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, overlaps = threading.Semaphore(1), []

    class Slow(Slabs):
        """Whoever comes while another is inside is written down."""

        def take(self, nbytes: int) -> tuple[int, int] | None:
            return self._alone(lambda: super(Slow, self).take(nbytes))

        def give_back(self, address: int) -> None:
            self._alone(lambda: super(Slow, self).give_back(address))

        def _alone(self, step: Callable[[], Result]) -> Result:
            alone = inside.acquire(blocking=False)
            if not alone:
                overlaps.append(threading.current_thread().name)
            time.sleep(1e-3)
            try:
                return step()
            finally:
                if alone:
                    inside.release()

    monkeypatch.setattr("interlace.device.cuda.memory.mapped.Slabs", Slow)
    memory = MappedMemory(driver)

    def use() -> None:
        for _ in range(10):
            memory.give_back(memory.take(64))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert memory.used_bytes == 0
    memory.close()


def test_refused_memory_leaves_nothing_and_closing_tries_all(driver: FakeDriver) -> None:
    memory = MappedMemory(driver, slab_bytes=1 << 12)
    driver.fail("allocate_mapped", NO_MEMORY)
    with pytest.raises(CudaError, match=NO_MEMORY):
        memory.take(64)
    assert driver.leftovers() == []
    slabs = [memory.take(4096) for _ in range(3)]
    driver.fail("free_mapped", "CUDA_ERROR_INVALID_VALUE", skip=1)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        memory.close()
    assert len(driver.leftovers()) == 1
    driver.free_mapped(slabs[1])


class Block:
    """A parameter block, and what a batch that begins finds of it."""

    def __init__(self, driver: FakeDriver, memory: MappedMemory, *sizes: int) -> None:
        self.inputs, self.outputs, self.max_rows = sizes
        self.made = BatchParameters(driver, memory, *sizes)
        self.kernels = load_kernels(driver, IMAGE)
        self.stream = driver.stream()
        self.driver = driver

    def begin(self) -> int:
        """A batch begins; returns its turn."""
        TransferKernels(self.driver, self.kernels).begin(self.stream, self.made)
        return self.made.launched()

    @property
    def found(self) -> tuple[int, list[list[int]], list[int]]:
        """Rows, the tables, the targets."""
        made, places = self.made, range(self.inputs)
        tables = [[word(made.table(i) + 8 * r) for r in range(self.max_rows)] for i in places]
        targets = [word(made.target_word(place)) for place in range(self.outputs)]
        return word(made.rows_word), tables, targets

    def close(self) -> None:
        self.made.close()
        self.driver.unload_kernels(self.kernels.module)
        self.driver.destroy_stream(self.stream)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9), st.data())
def test_words_do_not_overlap_and_lie_in_the_block(
    inputs: int, outputs: int, max_rows: int, data: st.DataObject
) -> None:
    driver = FakeDriver()
    memory = MappedMemory(driver)
    block = Block(driver, memory, inputs, outputs, max_rows)
    neighbour = Block(driver, memory, 1, 1, 1)
    neighbour.made.write(3, 1, [[4]], [5])
    for sequence in range(3):
        rows = data.draw(st.integers(0, max_rows))
        numbers = st.integers(0, (1 << 64) - 1)
        lists = st.lists(numbers, min_size=rows, max_size=rows)
        sources = [data.draw(lists) for _ in range(inputs)]
        targets = data.draw(st.lists(numbers, min_size=outputs, max_size=outputs))
        block.made.write(sequence, rows, sources, targets)
        turn = block.begin()
        found_rows, tables, found_targets = block.found
        assert (found_rows, [table[:rows] for table in tables]) == (rows, sources)
        assert found_targets == targets
        assert block.made.times_ns(turn)[0] > 0
    neighbour.begin()
    assert neighbour.found == (1, [[4]], [5])
    block.close()
    neighbour.close()
    memory.close()
    driver.close()


def test_without_memory_nothing_is_left(driver: FakeDriver, mapped: MappedMemory) -> None:
    for call in ("allocate", "allocate_mapped"):
        driver.fail(call, NO_MEMORY)
        with pytest.raises(CudaError, match=NO_MEMORY):
            BatchParameters(driver, mapped, 1, 1, 1)
        assert driver.leftovers() == []


def test_what_does_not_fit_is_refused_and_changes_nothing(
    driver: FakeDriver, mapped: MappedMemory
) -> None:
    block = Block(driver, mapped, 1, 1, 2)
    block.made.write(1, 1, [[10]], [20])
    for rows, sources, targets, why in (
        (3, [[1, 2, 3]], [1], "3 rows for a program of at most 2"),
        (-1, [[]], [1], "-1 rows"),
        (1, [], [1], "0 inputs and 1 outputs for a program of 1 and 1"),
        (1, [[1]], [], "1 inputs and 0 outputs"),
        (2, [[1]], [1], r"\[1\] addresses for 2 rows"),
    ):
        with pytest.raises(ValueError, match=why):
            block.made.write(2, rows, sources, targets)
    block.begin()
    assert block.found == (1, [[10, 0]], [20])
    block.close()


def test_more_page_locked_memory_is_no_second_slab_as_large_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mapped, "_GROWN_BYTES", 1 << 16)
    driver = FakeDriver()
    sizes: list[int] = []
    pin = driver.allocate_mapped
    monkeypatch.setattr(driver, "allocate_mapped", lambda size: (sizes.append(size), pin(size))[1])
    memory = MappedMemory(driver, slab_bytes=1 << 20)
    for nbytes in (1 << 20, 100, 1 << 18):
        memory.take(nbytes)
    assert sizes == [1 << 20, 1 << 16, 1 << 18]
    memory.close()


class Bench:
    """One program: an input of rows, a "model" that hands it on, an output."""

    def __init__(self, row_bytes: int, max_rows: int) -> None:
        self.driver = FakeDriver()
        self.kernels = load_kernels(self.driver, IMAGE)
        self.memory = MappedMemory(self.driver)
        self.block = BatchParameters(self.driver, self.memory, 1, 1, max_rows)
        self.stream = self.driver.stream()
        self.nbytes = max(1, row_bytes * max_rows)
        self.static = self.driver.allocate(self.nbytes)
        self.received = self.memory.take(2 * self.nbytes)
        self.replies = self.memory.take(self.nbytes)
        self.flag = self.memory.take(8)
        self.row_bytes = row_bytes

    def body(self) -> None:
        transfer = TransferKernels(self.driver, self.kernels)
        transfer.begin(self.stream, self.block)
        transfer.gather(self.stream, self.block, 0, self.static, self.row_bytes)
        outputs = [(self.static, self.row_bytes)]
        transfer.finish(self.stream, self.block, outputs, self.flag.device)

    def write(self, sequence: int, sources: Sequence[int]) -> None:
        self.block.write(sequence, len(sources), [sources], [self.replies.device])

    def close(self) -> None:
        self.driver.destroy_stream(self.stream)
        self.driver.free(self.static)
        self.block.close()
        self.driver.unload_kernels(self.kernels.module)
        self.memory.close()
        self.driver.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(row_bytes=6, max_rows=4)
    yield bench
    bench.close()


@given(st.integers(0, 40), st.integers(1, 5), st.data())
def test_scattered_rows_arrive_in_order_and_padding_is_not_published(
    row_bytes: int, max_rows: int, data: st.DataObject
) -> None:
    bench = Bench(row_bytes, max_rows)
    rows = data.draw(st.integers(0, max_rows))
    order = data.draw(st.permutations(range(2 * max_rows)))[:rows]
    content = data.draw(st.binary(min_size=bench.nbytes * 2, max_size=bench.nbytes * 2))
    ctypes.memmove(bench.received.host, content, len(content))
    ctypes.memset(bench.static, 0xEE, bench.nbytes)
    ctypes.memset(bench.replies.host, 0xAA, bench.nbytes)
    sources = [bench.received.device + row * row_bytes for row in order]
    bench.write(5, sources)
    bench.body()
    wanted = b"".join(content[row * row_bytes : (row + 1) * row_bytes] for row in order)
    nbytes = row_bytes * max_rows
    assert ctypes.string_at(bench.static, nbytes) == wanted.ljust(nbytes, b"\0")
    assert ctypes.string_at(bench.replies.host, nbytes) == wanted.ljust(nbytes, b"\xaa")
    assert ctypes.c_uint64.from_address(bench.flag.host).value == 5
    bench.close()


def test_a_batch_is_launched_behind_another_and_reads_its_own_parameters(bench: Bench) -> None:
    captured = FakeCapturer(bench.driver, torch_too=False).capture(bench.stream, None, bench.body)
    flag = ctypes.c_uint64.from_address(bench.flag.host)
    texts = [b"first!", b"second", b"third!", b"fourth"]
    ctypes.memmove(bench.received.host, b"".join(texts), 24)
    bench.driver.hold(bench.stream)
    turns: list[int] = []
    for number in range(len(texts)):
        bench.write(number + 1, [bench.received.device + 6 * number])
        bench.driver.launch_graph(captured.executable, bench.stream)
        turns.append(bench.block.launched())
        if number:  # two are there now: the first of them ends
            bench.driver.run(bench.stream, 1)
            assert flag.value == number
            assert ctypes.string_at(bench.replies.host, 6) == texts[number - 1]
    bench.driver.run(bench.stream)
    assert flag.value == 4
    assert ctypes.string_at(bench.replies.host, 6) == texts[-1]
    times_ns = [bench.block.times_ns(turn) for turn in turns[-2:]]
    assert times_ns[0][0] < times_ns[0][1] <= times_ns[1][0] < times_ns[1][1]
    captured.close()


def test_a_refused_launch_takes_no_turn(bench: Bench) -> None:
    captured = FakeCapturer(bench.driver, torch_too=False).capture(bench.stream, None, bench.body)
    ctypes.memmove(bench.received.host, b"wrong!right!", 12)
    bench.driver.fail("launch_graph", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    bench.write(1, [bench.received.device])
    with pytest.raises(CudaError):
        bench.driver.launch_graph(captured.executable, bench.stream)
    bench.write(2, [bench.received.device + 6])
    bench.driver.launch_graph(captured.executable, bench.stream)
    bench.block.launched()
    assert ctypes.string_at(bench.replies.host, 6) == b"right!"
    assert ctypes.c_uint64.from_address(bench.flag.host).value == 2
    captured.close()
