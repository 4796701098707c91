"""Frames between a loop and a blocking process: whole, in order, bounded, and the end is seen."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from interlace.shm.frame_socket import (
    FRAME_BYTES_MAX,
    AsyncFrameSocket,
    BlockingFrameSocket,
    frame_pair,
)


class Ask(msgspec.Struct, array_like=True, tag=1, frozen=True):
    number: int
    data: bytes = b""


class Stop(msgspec.Struct, array_like=True, tag=2, frozen=True):
    pass


Frame = Ask | Stop
decode = msgspec.msgpack.Decoder[Frame](Frame).decode


class Ends:
    """A loop's end that remembers, and a blocking end."""

    def __init__(self) -> None:
        ours, theirs = frame_pair()
        self.heard: list[Frame] = []
        self.closed = 0
        self.news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.loop_end: AsyncFrameSocket[Frame, Frame] = AsyncFrameSocket(
            loop, ours, decode, self._frame, self._closed
        )
        self.blocking_end: BlockingFrameSocket[Frame, Frame] = BlockingFrameSocket(theirs, decode)

    def _frame(self, frame: Frame) -> None:
        self.heard.append(frame)
        self.news.set()

    def _closed(self) -> None:
        self.closed += 1
        self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def close(self) -> None:
        self.loop_end.close()
        self.blocking_end.close()


def on_both_ends(body: Callable[[Ends], Awaitable[None]]) -> Callable[[], None]:
    """A test, which leaves no descriptor."""

    async def whole() -> None:
        ends = Ends()
        try:
            await body(ends)
        finally:
            ends.close()

    def test() -> None:
        before = set(os.listdir("/proc/self/fd"))
        asyncio.run(whole())
        assert set(os.listdir("/proc/self/fd")) <= before

    return test


@on_both_ends
async def test_frames_arrive_whole_and_in_order_both_ways(ends: Ends) -> None:
    for number in range(20):
        ends.loop_end.send(Ask(number, b"x" * number * 100))
        ends.blocking_end.send(Ask(-number))
    received = [ends.blocking_end.receive() for _ in range(20)]
    assert received == [Ask(number, b"x" * number * 100) for number in range(20)]
    await ends.until(lambda: len(ends.heard) == 20)
    assert ends.heard == [Ask(-number) for number in range(20)]


@on_both_ends
async def test_the_largest_frame_passes_and_a_larger_one_is_refused(ends: Ends) -> None:
    largest = Ask(1, b"x" * (FRAME_BYTES_MAX - 8))
    ends.loop_end.send(largest)
    assert ends.blocking_end.receive() == largest
    ends.blocking_end.send(largest)
    await ends.until(lambda: ends.heard == [largest])
    with pytest.raises(ValueError, match="limit"):
        ends.loop_end.send(Ask(1, b"x" * FRAME_BYTES_MAX))


@on_both_ends
async def test_what_does_not_fit_waits_in_a_bounded_queue(ends: Ends) -> None:
    sent = 0
    with pytest.raises(BufferError, match="does not read"):
        while True:
            ends.loop_end.send(Ask(sent, b"x" * 10_000))
            sent += 1
    assert sent > 100
    reader = asyncio.to_thread(lambda: [ends.blocking_end.receive() for _ in range(sent)])
    received = await asyncio.wait_for(reader, 20)
    assert [frame.number for frame in received if isinstance(frame, Ask)] == list(range(sent))
    ends.loop_end.send(Stop())
    assert ends.blocking_end.receive() == Stop()


@on_both_ends
async def test_finish_comes_after_what_is_queued(ends: Ends) -> None:
    for number in range(150):
        ends.loop_end.send(Ask(number, b"x" * 10_000))
    ends.loop_end.finish()
    received: list[Frame] = []

    def read() -> None:
        while (frame := ends.blocking_end.receive()) is not None:
            received.append(frame)
        ends.blocking_end.send(Stop())  # the way back is still open

    await asyncio.wait_for(asyncio.to_thread(read), 20)
    assert len(received) == 150
    await ends.until(lambda: ends.heard == [Stop()])


@on_both_ends
async def test_the_loop_hears_of_the_end_once(ends: Ends) -> None:
    ends.blocking_end.send(Ask(1))
    ends.blocking_end.close()
    await ends.until(lambda: ends.closed > 0)
    assert ends.heard == [Ask(1)]
    ends.loop_end.send(Ask(2))  # into the void
    await asyncio.sleep(0.01)
    assert ends.closed == 1


@on_both_ends
async def test_an_end_that_sends_no_frame_counts_as_gone(ends: Ends) -> None:
    ends.blocking_end.send(Ask(1))
    ends.blocking_end.send("no frame")  # type: ignore[arg-type]
    await ends.until(lambda: ends.closed > 0)
    assert ends.heard == [Ask(1)] and ends.closed == 1
    assert ends.blocking_end.receive() is None


@on_both_ends
async def test_closing_this_end_is_no_news(ends: Ends) -> None:
    ends.loop_end.close()
    ends.loop_end.close()
    assert ends.blocking_end.receive() is None
    with pytest.raises(OSError):
        ends.blocking_end.send(Stop())
    await asyncio.sleep(0.01)
    assert ends.closed == 0
