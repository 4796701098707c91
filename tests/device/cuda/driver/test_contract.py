"""The contract of ``Driver``: the fake one keeps it, and the real one where there is a GPU."""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlace.device.cuda.driver.api import CopyGroup, CudaError
from tests.device.cuda.driver.drivers import FAKE, REAL, Rig, missing, real

ABSENT = missing()
MIB = 1 << 20


@pytest.fixture(params=[FAKE] if ABSENT else [FAKE, REAL], scope="module")
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(request.param)
    yield made
    made.close()


@pytest.mark.skipif(bool(ABSENT), reason=f"the contract holds for the fake alone: {ABSENT}")
def test_a_real_driver_is_here() -> None:
    assert real().board.driver > 0


def test_the_board_is_described(rig: Rig) -> None:
    board = rig.driver.board
    assert board.name and board.uuid.startswith("GPU-")
    assert board.capability >= (7, 0) and board.sms > 0 and board.driver >= 12040
    assert rig.driver.memory().total_bytes <= board.memory_bytes


def test_memory_taken_is_given_back(rig: Rig) -> None:
    before = rig.driver.memory().free_bytes
    address = rig.driver.allocate(64 * MIB)
    assert address % 256 == 0
    assert rig.driver.memory().free_bytes <= before - 64 * MIB
    rig.driver.free(address)
    assert rig.driver.memory().free_bytes == before


def test_more_memory_than_there_is(rig: Rig) -> None:
    with pytest.raises(CudaError, match="OUT_OF_MEMORY") as caught:
        rig.driver.allocate(rig.driver.memory().total_bytes + MIB)
    assert not caught.value.sticky
    rig.driver.synchronize(rig.stream)


def test_bytes_go_to_the_gpu_and_back(rig: Rig) -> None:
    source, sent = rig.mapped(5000)
    target, received = rig.mapped(5000)
    sent[:] = np.arange(5000) % 251
    address = rig.driver.allocate(5000)
    rig.driver.copy(address, source.device, 5000, rig.stream)
    rig.driver.copy(target.host, address, 5000, rig.stream)
    rig.driver.synchronize(rig.stream)
    assert np.array_equal(received, sent)
    rig.driver.free(address)


@pytest.mark.parametrize("read_only", [False, True])
def test_memory_of_the_process_is_registered(rig: Rig, read_only: bool) -> None:
    fd = os.memfd_create("registered")
    os.ftruncate(fd, 2 * mmap.PAGESIZE)
    with mmap.mmap(fd, 2 * mmap.PAGESIZE) as writer:
        writer[:5] = b"hello"
        if read_only:
            reader = mmap.mmap(fd, 2 * mmap.PAGESIZE, prot=mmap.PROT_READ)
            view = np.frombuffer(reader, np.uint8)
        else:
            view = np.frombuffer(writer, np.uint8)
        mapped = rig.driver.register(view.ctypes.data, view.nbytes, read_only)
        assert (mapped.host, mapped.nbytes) == (view.ctypes.data, view.nbytes)
        target, received = rig.mapped(16)
        address, one = rig.words(target.device), rig.words(1)
        rig.launch("publish", mapped.device, address.device, one.device, 5)
        assert bytes(received[:6]) == b"hello\0"
        rig.driver.unregister(mapped)
        del view
    os.close(fd)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_gather_puts_rows_together(rig: Rig, data: st.DataObject) -> None:
    row_bytes = data.draw(st.sampled_from([1, 3, 4, 12, 16, 48, 250, 2048, 2064, 4100, 6000]))
    capacity = data.draw(st.integers(1, 9))
    rows = data.draw(st.integers(0, capacity))
    blocks, threads = data.draw(st.sampled_from([(1, 32), (2, 64), (3, 96)]))
    begins = data.draw(st.lists(st.integers(0, 70), min_size=capacity, max_size=capacity))
    if data.draw(st.booleans()):
        begins = [16 * (one // 16) for one in begins]
    source, sent = rig.mapped(70 + row_bytes)
    target, received = rig.mapped(capacity * row_bytes + 16)
    sent[:] = np.random.default_rng(row_bytes).integers(1, 256, sent.size)
    received[:] = 255
    table = rig.words(*(source.device + one for one in begins))
    count = rig.words(rows)
    words = (table.device, count.device, target.device, row_bytes, capacity)
    rig.launch("gather_rows", *words, blocks=blocks, threads=threads)
    wanted = [sent[one : one + row_bytes] for one in begins[:rows]]
    wanted += [np.zeros(row_bytes, np.uint8)] * (capacity - rows)
    assert np.array_equal(received[: capacity * row_bytes], np.concatenate(wanted))
    assert (received[capacity * row_bytes :] == 255).all()


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(0, 5),
    row_bytes=st.sampled_from([1, 4, 10, 16, 4000, 20000]),
    shift=st.sampled_from([0, 1, 4, 16]),
)
def test_publish_copies_real_rows_alone(rig: Rig, rows: int, row_bytes: int, shift: int) -> None:
    source, sent = rig.mapped(5 * row_bytes)
    target, received = rig.mapped(5 * row_bytes + 64)
    sent[:] = np.random.default_rng(rows).integers(1, 256, sent.size)
    place, count = rig.words(target.device + shift), rig.words(rows)
    rig.launch("publish", source.device, place.device, count.device, row_bytes)
    end = shift + rows * row_bytes
    assert np.array_equal(received[shift:end], sent[: rows * row_bytes])
    assert not received[:shift].any() and not received[end:].any()


def test_signal_stores_the_sequence(rig: Rig) -> None:
    flag, sequence = rig.words(0), rig.words((1 << 63) + 5)
    rig.launch("signal", flag.device, sequence.device, blocks=1, threads=1)
    assert ctypes.c_uint64.from_address(flag.host).value == (1 << 63) + 5


@pytest.mark.parametrize("threads", [1, 32, 96])
def test_blocks_of_parameters_take_turns(rig: Rig, threads: int) -> None:
    words = 70
    blocks = rig.words(*range(1000, 1000 + 2 * words))
    turn, flag = rig.words(0), rig.words(0)
    copy, received = rig.mapped(8 * words)
    seen = received.view(np.uint64)
    told = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * words)).from_address(blocks.host))
    described = told.copy()
    last_ns = 0
    for number in (0, 1, 0, 1):
        told[number * words + 1] = described[number * words + 1] = 7 + last_ns
        told[number * words + 2 : number * words + 4] = 0
        arguments = (blocks.device, words, turn.device, copy.device)
        rig.launch("begin", *arguments, blocks=1, threads=threads)
        rig.launch("finish", flag.device, copy.device, blocks=1, threads=1)
        mine = slice(number * words + 4, (number + 1) * words)
        assert np.array_equal(seen[4:], described[mine])
        assert seen[1] == ctypes.c_uint64.from_address(flag.host).value == 7 + last_ns
        began_ns, ended_ns = (int(told[number * words + at]) for at in (2, 3))
        assert last_ns < began_ns <= ended_ns
        last_ns = ended_ns
    assert ctypes.c_uint64.from_address(turn.host).value == 4


@pytest.mark.parametrize("name", ["l2_stream", "dram_stream"])
def test_streamers_count_what_they_read(rig: Rig, name: str) -> None:
    source, _ = rig.mapped(64 * 1024)
    moved = rig.words(0)
    rig.launch(name, source.device, source.nbytes, 100_000, moved.device)
    count = ctypes.c_uint64.from_address(moved.host).value
    assert count > 0 and count % 16 == 0


def test_spin_counts_its_turns(rig: Rig) -> None:
    turns = rig.words(0)
    rig.launch("spin", 100_000, turns.device)
    assert ctypes.c_uint64.from_address(turns.host).value > 0


def test_events_follow_the_stream(rig: Rig) -> None:
    driver, turns = rig.driver, rig.words(0)
    begin, end, last = driver.event(timing=True), driver.event(timing=True), driver.event()
    assert driver.ended(last)  # never recorded
    driver.record(begin, rig.stream)
    words = (2_000_000, turns.device)
    driver.launch(rig.kernels.spin, (1, 1, 1), (32, 1, 1), rig.stream, words)
    driver.record(end, rig.stream)
    other = driver.stream()
    driver.wait(other, end)
    driver.record(last, other)
    for event in (begin, end, last):
        while not driver.ended(event):
            time.sleep(0)
    for stream in (rig.stream, other):
        while not driver.idle(stream):
            time.sleep(0)
    assert driver.elapsed_ms(begin, end) >= 0
    driver.destroy_stream(other)
    for event in (begin, end, last):
        driver.destroy_event(event)


def test_atoms_make_up_the_gpu(rig: Rig) -> None:
    split = rig.driver.split(8)
    rest = split.rest.sms if split.rest else 0
    assert {atom.sms for atom in split.atoms} == {8}
    assert sum(atom.sms for atom in split.atoms) + rest == rig.driver.board.sms


def sms_used(rig: Rig, stream: int) -> set[int]:
    """The numbers of the SMs that many blocks ran on."""
    count = 2 * rig.driver.board.sms
    made, view = rig.mapped(8 * count)
    words = (made.device, 200_000)
    rig.driver.launch(rig.kernels.smid, (count, 1, 1), (1, 1, 1), stream, words)
    rig.driver.synchronize(stream)
    return {int(one) for one in view.view(np.uint64)}


def test_green_contexts_keep_to_their_sms(rig: Rig) -> None:
    driver, split = rig.driver, rig.driver.split(8)
    rest = [split.rest] if split.rest else []
    left = driver.green(split.atoms[:2])
    right = driver.green([*split.atoms[2:], *rest])
    over = driver.green(split.atoms[1:3])
    assert [one.sms for one in (left, right, over)] == [16, driver.board.sms - 16, 16]
    streams = [driver.stream(one) for one in (left, right, over)]
    used = [sms_used(rig, stream) for stream in streams]
    assert [len(one) for one in used] == [16, driver.board.sms - 16, 16]
    assert not used[0] & used[1]
    assert len(used[0] & used[2]) == 8
    assert len(sms_used(rig, rig.stream)) == driver.board.sms
    for stream in streams:
        driver.destroy_stream(stream)
    for green in (left, right, over):
        driver.destroy_green(green)


def test_sms_that_cannot_be_had(rig: Rig) -> None:
    with pytest.raises(CudaError) as caught:
        rig.driver.green([])
    assert not caught.value.sticky


def test_no_such_kernel(rig: Rig) -> None:
    with pytest.raises(CudaError, match="nothing"):
        rig.driver.kernel(rig.kernels.module, "nothing")
    with pytest.raises(CudaError):
        rig.driver.load_kernels(b"no image at all" * 10)


def test_a_handle_names_an_allocation(rig: Rig) -> None:
    address = rig.driver.allocate(4096)
    handle = rig.driver.ipc_handle(address)
    assert len(handle) == 64 and handle == rig.driver.ipc_handle(address)
    rig.driver.free(address)


@given(st.data())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_of_a_table_are_looked_up(rig: Rig, data: st.DataObject) -> None:
    """As torch's embedding, and the nearest row where there is none."""
    index_bytes = data.draw(st.sampled_from([4, 8]))
    rows, row_bytes = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([2, 24, 32, 4100]))
    wanted = data.draw(st.lists(st.integers(-3, 12), min_size=1, max_size=12))
    table, contents = rig.mapped(rows * row_bytes)
    contents[:] = np.random.default_rng(0).integers(0, 256, contents.size)
    indices, given_ = rig.mapped(index_bytes * len(wanted))
    given_.view(np.int32 if index_bytes == 4 else np.int64)[:] = wanted
    target, found = rig.mapped(len(wanted) * row_bytes)
    word = rig.words(table.device)
    sizes = len(wanted), word.device, target.device, row_bytes, rows
    rig.launch("embed_rows", indices.device, index_bytes, *sizes)
    expected = contents.reshape(rows, row_bytes)[np.clip(wanted, 0, rows - 1)]
    assert np.array_equal(found.reshape(len(wanted), row_bytes), expected)


def test_groups_of_copies_are_enqueued_in_order_between_their_events(rig: Rig) -> None:
    driver, first, second = rig.driver, rig.driver.event(), rig.driver.event()
    source, sent = rig.mapped(64)
    target, received = rig.mapped(64)
    sent[:] = range(64)
    one = CopyGroup(0, [(target.device, source.device, 16)], first)
    two = CopyGroup(first, [(target.device + 16 * at, source.device, 16) for at in (1, 2)], second)
    driver.copy_groups([one, two], rig.stream)
    for event in (second, first):
        while not driver.ended(event):
            time.sleep(0)
    assert bytes(received) == bytes(range(16)) * 3 + bytes(16)
    with pytest.raises(CudaError):
        driver.copy_groups([CopyGroup(0, [], first)], 0)
    for event in (first, second):
        driver.destroy_event(event)
