"""Reads files outside the event loop; reads that make no progress are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from interlace.core.errors import RepositoryError
from interlace.runtime.event_loop import DaemonThreads

T = TypeVar("T")

#: Reads at once, those included that storage never answers.
_AT_ONCE: Final = 8
_LIMIT_S: Final = 30.0


class StorageReader:
    """Runs reads in daemon threads, which need not end before the process does.

    A read from storage that hangs cannot be ended, only left behind; such reads keep their place,
    so that there are never more than a few.
    """

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._free = _AT_ONCE
        self._steps = 0  #: times that a read was seen to go on
        self._freed = asyncio.Event()
        self._threads = DaemonThreads(_AT_ONCE)

    async def read(self, what: str, work: Callable[[], T], steps: Callable[[], int]) -> T:
        """What ``work`` returns or raises; ``steps`` grows as long as it makes progress.

        Raises:
            RepositoryError: storage did not answer for too long.
        """
        await self._place(what)
        loop = asyncio.get_running_loop()
        read = self._threads.submit(work)

        def ended(read: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(self._give_back)

        read.add_done_callback(ended)
        return await self._watched(what, asyncio.wrap_future(read), steps)

    async def _place(self, what: str) -> None:
        while not self._free:
            self._freed.clear()
            before = self._steps
            try:
                await asyncio.wait_for(self._freed.wait(), 2.0 * self._limit_s)
            except TimeoutError:
                if self._steps == before:  # storage hangs; else others are large
                    raise _stalled(what, 2.0 * self._limit_s) from None
        self._free -= 1

    async def _watched(self, what: str, done: asyncio.Future[T], steps: Callable[[], int]) -> T:
        before = -1
        while not done.done() and before != (now := steps()):
            before = now
            self._steps += 1
            await asyncio.wait([done], timeout=self._limit_s)
        if not done.done():
            done.cancel()
            raise _stalled(what, self._limit_s)
        return done.result()

    def _give_back(self) -> None:
        self._free += 1
        self._freed.set()


def _stalled(what: str, limit_s: float) -> RepositoryError:
    return RepositoryError(what, f"nothing to be read for {limit_s:g} s", "storage that answers")
