"""Laws of the allocator: blocks never overlap, are aligned, and all come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.shm.arena import MIN_ORDER, QUICK_BLOCKS, BuddyAllocator

SIZE = 1 << 16
#: A positive number allocates that many bytes; a negative one frees the block of that place.
STEPS = st.lists(
    st.one_of(st.integers(1, SIZE // 2), st.integers(1, 300), st.integers(-50, -1)), max_size=300
)


def play(blocks: BuddyAllocator, steps: list[int]) -> dict[int, int]:
    """Sizes by offset of what is allocated after the steps."""
    live: dict[int, int] = {}
    for step in steps:
        if step > 0:
            offset = blocks.alloc(step)
            if offset is not None:
                assert offset not in live
                live[offset] = step
        elif live:
            offset = list(live)[step % len(live)]
            blocks.free(offset)
            del live[offset]
    return live


@given(STEPS)
def test_blocks_are_disjoint_aligned_and_inside_and_all_come_back(steps: list[int]) -> None:
    blocks = BuddyAllocator(SIZE)
    live, end = play(blocks, steps), 0
    assert blocks.used_bytes == sum(max(64, 1 << (n - 1).bit_length()) for n in live.values())
    for offset, nbytes in sorted(live.items()):
        assert offset % 64 == 0
        assert offset >= end
        end = offset + nbytes
    assert end <= SIZE
    for offset in live:
        blocks.free(offset)
    assert blocks.used_bytes == 0
    assert blocks.alloc(SIZE) == 0


@given(STEPS, st.integers(1, SIZE))
def test_a_refusal_means_that_no_aligned_run_is_free(steps: list[int], nbytes: int) -> None:
    blocks = BuddyAllocator(SIZE)
    live = play(blocks, steps)
    if blocks.alloc(nbytes) is not None:
        return
    size = max(64, 1 << (nbytes - 1).bit_length())
    taken = [(at, at + max(64, 1 << (n - 1).bit_length())) for at, n in live.items()]
    for start in range(0, SIZE, size):
        assert any(at < start + size and start < end for at, end in taken)


@pytest.mark.parametrize("size", [64, 4096, 3 << 12, 100_032])
def test_a_range_of_any_size_is_given_out_once(size: int) -> None:
    blocks = BuddyAllocator(size)
    offsets = set()
    while (offset := blocks.alloc(64)) is not None:
        offsets.add(offset)
    assert offsets == {64 * place for place in range(size // 64)}


def test_a_freed_block_is_the_next_one_of_its_size() -> None:
    blocks = BuddyAllocator(SIZE)
    first, second = blocks.alloc(500), blocks.alloc(500)
    assert first is not None and second is not None
    blocks.free(second)
    blocks.free(first)
    assert blocks.alloc(400) == first


def test_more_freed_blocks_than_the_stack_holds_are_merged() -> None:
    blocks = BuddyAllocator(SIZE)
    offsets = [blocks.alloc(64) for _ in range(SIZE >> MIN_ORDER)]
    assert len(offsets) > 2 * QUICK_BLOCKS
    for offset in offsets:
        assert offset is not None
        blocks.free(offset)
    assert sum(size for _, size in blocks.free_blocks(128)) > 0
    blocks.merge()
    assert list(blocks.free_blocks(64)) == [(0, SIZE)]


def test_nothing_and_too_much() -> None:
    blocks = BuddyAllocator(SIZE)
    assert blocks.alloc(0) is not None
    assert blocks.alloc(SIZE + 1) is None
    assert blocks.alloc(1 << 40) is None


def test_freeing_twice_is_an_error() -> None:
    blocks = BuddyAllocator(SIZE)
    offset = blocks.alloc(10)
    assert offset is not None
    blocks.free(offset)
    with pytest.raises(ValueError, match="not allocated"):
        blocks.free(offset)
    with pytest.raises(ValueError, match="not allocated"):
        blocks.free(7)
