"""Reads beside the loop: results, errors, storage that hangs, and not too many of those."""

import asyncio
import threading
import time
from itertools import count

import pytest

from interlace.core.errors import RepositoryError
from interlace.runtime import event_loop
from interlace.runtime.event_loop import StorageReader


async def test_results_and_errors_come_back_and_the_loop_goes_on() -> None:
    reads = StorageReader()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    turning = asyncio.ensure_future(turn())
    assert await reads.read("x", lambda: time.sleep(0.3) or 7, lambda: 0) == 7
    assert turns > 10
    with pytest.raises(ZeroDivisionError):
        await reads.read("x", lambda: 1 // 0, lambda: 0)
    turning.cancel()


async def test_what_gets_on_is_waited_for_and_what_hangs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "READ_LIMIT_S", 0.2)
    reads = StorageReader()
    steps = count()
    slow = await reads.read("slow", lambda: time.sleep(0.5) or "all", lambda: next(steps))
    assert slow == "all"
    hangs = threading.Event()
    with pytest.raises(RepositoryError, match=r"dead: found nothing to be read for 0\.2 s"):
        await reads.read("dead", hangs.wait, lambda: 0)
    hangs.set()


async def test_storage_that_hangs_holds_a_few_threads_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "READ_LIMIT_S", 0.1)
    reads = StorageReader()
    hangs = threading.Event()
    before = threading.active_count()
    ends = await asyncio.gather(
        *(reads.read("dead", hangs.wait, lambda: 0) for _ in range(30)), return_exceptions=True
    )
    assert all(isinstance(end, RepositoryError) for end in ends)
    assert threading.active_count() - before <= event_loop._READS_AT_ONCE
    hangs.set()
    assert await reads.read("well again", lambda: 1, lambda: 0) == 1


async def test_reads_that_get_on_keep_no_others_from_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "READ_LIMIT_S", 0.1)
    reads = StorageReader()
    steps = count()
    large = [
        asyncio.ensure_future(reads.read("large", lambda: time.sleep(0.3), lambda: next(steps)))
        for _ in range(event_loop._READS_AT_ONCE)
    ]
    assert await reads.read("small", lambda: 1, lambda: 0) == 1
    await asyncio.gather(*large)
