"""The event loop of a process that serves, and the threads for what would block it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Calls at once that the loop waits for in threads.
_MOST: Final = 32


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own; calls in threads do not hold the process at its end.

    Raises:
        BaseException: as the coroutine.
    """
    import uvloop  # only what serves has it

    async def within() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        return await main

    found: T = uvloop.run(within())
    return found


class DaemonThreads(ThreadPoolExecutor):
    """Threads that nobody waits for: a read from storage that hangs never ends."""

    def __init__(self, most: int = _MOST) -> None:
        super().__init__(most)
        self._most = most
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._begun = 0
        self._beginning = Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The call's future; it waits for a thread where all of them are busy."""
        future: Future[T] = Future()
        self._asked.put(partial(_call, future, partial(fn, *args, **kwargs)))
        with self._beginning:
            if not self._idle.acquire(blocking=False) and self._begun < self._most:
                self._begun += 1
                Thread(target=self._work, name="beside the loop", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Have threads end that do nothing; those that hang are left behind."""
        for _ in range(self._begun):
            self._asked.put(None)

    def _work(self) -> None:
        while (call := self._asked.get()) is not None:
            call()
            self._idle.release()


def _call(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
