"""Ends of batches: nothing early, nothing lost, nothing twice, errors found."""

import ctypes
import os
import select
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.driver.flag_poller import FlagPoller, c_library, poll_loop
from interlace.device.cuda.driver.kernels import load_kernels
from tests.device.cuda.fake import IMAGE, FakeDriver

LANES = 3
WAIT_S = 10.0


class Bench:
    """Lanes of a fake GPU, each with a graph's last kernel, and completions under test."""

    def __init__(self, pace: str = "held") -> None:
        self.driver = FakeDriver(pace=pace)
        self.kernels = load_kernels(self.driver, IMAGE)
        self.completions = FlagPoller(self.driver, LANES)
        self.streams = [self.driver.stream() for _ in range(LANES)]
        self.sequences = [self.driver.allocate_mapped(4096) for _ in range(LANES)]
        self.submitted: list[list[int]] = [[] for _ in range(LANES)]
        self.broken = False

    def submit(self, lane: int, sequence: int) -> None:
        """As a worker does: a word per batch, the last kernel, then say so."""
        words = self.sequences[lane]
        slot = 8 * len(self.submitted[lane])
        ctypes.c_uint64.from_address(words.host + slot).value = sequence
        flag = self.completions.flag(lane)
        one, stream = (1, 1, 1), self.streams[lane]
        arguments = (flag.device, words.device + slot)
        self.driver.launch(self.kernels.signal, one, one, stream, arguments)
        self.completions.submitted(lane, sequence, stream)
        self.submitted[lane].append(sequence)

    def step(self, lane: int) -> None:
        """Run the lane's oldest batch."""
        self.driver.run(self.streams[lane], 1)

    def readable(self, timeout_s: float) -> bool:
        return bool(select.select([self.completions.fileno()], [], [], timeout_s)[0])

    def drained(self, count: int) -> list[tuple[int, int]]:
        """Wait for that many ends, woken by the descriptor alone."""
        found: list[tuple[int, int]] = []
        until_s = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < until_s:
            if self.readable(WAIT_S):
                found += self.completions.drain()
        return found

    def close(self) -> None:
        if self.broken:
            with pytest.raises(CudaError):  # what the system gave is given back before
                self.completions.close()
            return
        self.completions.close()
        for stream in self.streams:
            self.driver.destroy_stream(stream)
        for words in self.sequences:
            self.driver.free_mapped(words)
        self.driver.unload_kernels(self.kernels.module)
        self.driver.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_what_memory_tells_is_seen_without_the_descriptor(bench: Bench) -> None:
    assert not bench.completions.look(0.0)
    bench.submit(1, 4)
    bench.submit(1, 5)
    assert not bench.completions.look(1e-4)
    bench.step(1)
    assert bench.completions.look(0.0)  # the GPU has written it
    assert bench.drained(1) == [(1, 4)]
    assert not bench.completions.look(0.0)
    bench.step(1)
    assert bench.drained(1) == [(1, 5)]


def test_a_failure_is_found_by_the_slow_check(bench: Bench) -> None:
    bench.completions.check()
    bench.driver.fail("run", "CUDA_ERROR_ILLEGAL_ADDRESS")
    bench.submit(0, 1)
    bench.step(0)
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS") as caught:
        bench.completions.check()
    assert caught.value.sticky
    bench.broken = True


def test_a_closed_poller_leaves_no_thread_and_no_descriptor_even_after_a_failure() -> None:
    Bench("at once").close()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    made = Bench()
    made.submit(0, 1)
    made.driver.fail("run", "CUDA_ERROR_LAUNCH_FAILED")
    made.driver.run(made.streams[0])
    made.broken = True
    made.close()
    made.driver.close()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files


def test_on_threads_that_end_by_themselves() -> None:
    bench = Bench("threads")
    for round_ in range(50):
        for lane in range(LANES):
            bench.submit(lane, round_ + 1)
    found = bench.drained(50 * LANES)
    assert sorted(found) == sorted((lane, r + 1) for lane in range(LANES) for r in range(50))
    for stream in bench.streams:
        bench.driver.synchronize(stream)  # the kernel that tells the end still runs meanwhile
    bench.close()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=st.lists(st.tuples(st.integers(0, LANES - 1), st.sampled_from("srd")), max_size=40),
    steps=st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
def test_each_end_is_told_once(moves: list[tuple[int, str]], steps: list[int]) -> None:
    bench = Bench()
    sequences, ran = [0] * LANES, [0] * LANES
    told: list[list[int]] = [[] for _ in range(LANES)]
    for (lane, move), step in zip(moves, steps, strict=False):
        if move == "s":
            sequences[lane] += step
            bench.submit(lane, sequences[lane])
        elif move == "r" and ran[lane] < len(bench.submitted[lane]):
            bench.step(lane)
            ran[lane] += 1
        elif move == "d":
            for one, sequence in bench.completions.drain():
                told[one].append(sequence)
        for one in range(LANES):
            assert told[one] == bench.submitted[one][: len(told[one])]
            assert len(told[one]) <= ran[one]
    for lane in range(LANES):
        while ran[lane] < len(bench.submitted[lane]):
            bench.step(lane)
            ran[lane] += 1
    for one, sequence in bench.drained(sum(ran) - sum(map(len, told))):
        told[one].append(sequence)
    assert told == bench.submitted
    bench.close()


def test_a_poller_that_rests_tells_the_same() -> None:
    driver = FakeDriver(pace="threads")
    made = FlagPoller(driver, 2, rest_us=200)
    stream = driver.stream()
    driver.destroy_stream(stream)
    flag = ctypes.c_uint64.from_address(made.flag(1).host)
    for sequence in (1, 2, 3):
        made.submitted(1, sequence, stream)
        flag.value = sequence
        assert select.select([made.fileno()], [], [], WAIT_S)[0]
        assert made.drain() == [(1, sequence)]
    made.close()
    driver.close()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing tried and nothing kept so far."""
    monkeypatch.setenv("HOME", str(tmp_path))
    c_library.cache_clear()
    yield
    c_library.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_c_compiler_is_used_once_and_its_work_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    poll_loop()
    (library,) = (tmp_path / ".cache/interlace/kernels").iterdir()
    assert library.suffix == ".so"
    c_library.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    poll_loop()


@pytest.mark.usefixtures("fresh")
def test_a_folder_that_cannot_be_written_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    poll_loop()


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails_is_told_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no headers >&2\nexit 3\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OSError, match="failed with code 3: no headers"):
        poll_loop()


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_the_process_does_not_start_and_nothing_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    driver = FakeDriver()
    with pytest.raises(OSError, match=r"no C compiler .* install gcc"):
        FlagPoller(driver, 2)
    driver.close()  # complains of what is left over


@pytest.mark.usefixtures("fresh")
def test_two_libraries_are_two() -> None:
    one = c_library("one", "int one(void) { return 1; }")
    two = c_library("two", "int two(void) { return 2; }")
    assert (one.one(), two.two()) == (1, 2)
