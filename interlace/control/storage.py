"""Reads files outside the event loop; reads that make no progress are given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from interlace.core.errors import RepositoryError

T = TypeVar("T")

#: Reads at once, those included that storage never answers.
_AT_ONCE: Final = 8
_LIMIT_S: Final = 30.0
#: A thread that finds nothing to read for so long ends.
_IDLE_S: Final = 1.0


class StorageReader:
    """Runs reads in daemon threads, which need not end before the process does.

    A read from storage that hangs cannot be ended, only left behind; such reads keep their place,
    so that there are never more than a few. Reads that follow each other share a thread: to start
    one takes as long as most reads.
    """

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._free = _AT_ONCE
        self._steps = 0  #: times that a read was seen to go on
        self._freed = asyncio.Event()
        self._reads: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads = 0
        self._ending = threading.Lock()

    async def read(self, what: str, work: Callable[[], T], steps: Callable[[], int]) -> T:
        """What ``work`` returns or raises; ``steps`` grows as long as it makes progress.

        Raises:
            RepositoryError: storage did not answer for too long.
        """
        await self._place(what)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result: T | None = None
            failure: Exception | None = None
            try:
                result = work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(self._ended, done, result, failure)

        self._begin(run)
        return await self._watched(what, done, steps)

    def _begin(self, read: Callable[[], None]) -> None:
        """Have a thread do it: there are as many as reads, at least."""
        with self._ending:
            self._reads.put(read)
            if self._threads >= _AT_ONCE - self._free:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="storage", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._reads.get(timeout=_IDLE_S)()
            except Empty:
                with self._ending:
                    if self._reads.empty():
                        self._threads -= 1
                        return

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

    def _ended(self, done: asyncio.Future[T], result: T | None, failure: Exception | None) -> None:
        self._free += 1
        self._freed.set()
        if done.done():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)  # type: ignore[arg-type]


def _stalled(what: str, limit_s: float) -> RepositoryError:
    return RepositoryError(what, f"nothing to be read for {limit_s:g} s", "storage that answers")
