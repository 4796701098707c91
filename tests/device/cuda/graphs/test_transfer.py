"""Gather and publish on the fake GPU, launched and recorded."""

import ctypes
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.driver.kernels import load_kernels
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.parameters import BatchParameters, TransferKernels, row_addresses
from tests.device.cuda.fake.capture import FakeCapturer
from tests.device.cuda.fake.driver import IMAGE, FakeDriver


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


def test_a_graph_reads_the_block_when_it_runs(bench: Bench) -> None:
    captured = FakeCapturer(bench.driver, torch_too=False).capture(bench.stream, None, bench.body)
    assert bench.driver.trace == []
    for sequence, text in enumerate((b"first!second", b"third!"), start=1):
        ctypes.memmove(bench.received.host, text, len(text))
        sources = row_addresses(bench.received.device, len(text) // 6, 6)
        bench.write(sequence, sources)
        bench.driver.launch_graph(captured.executable, bench.stream)
        turn = bench.block.launched()
        assert ctypes.string_at(bench.replies.host, len(text)) == text
        assert ctypes.c_uint64.from_address(bench.flag.host).value == sequence
        began_ns, ended_ns = bench.block.times_ns(turn)
        assert 0 < began_ns <= ended_ns
    captured.close()


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
