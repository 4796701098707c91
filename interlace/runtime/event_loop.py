"""The process that serves: its priority and memory, its event loop, threads for what blocks it."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, Final, ParamSpec, TypeVar

from interlace.core.errors import RepositoryError

P = ParamSpec("P")
T = TypeVar("T")

#: Calls at once that the loop waits for in threads.
_THREADS: Final = 32


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own; calls in threads do not hold the process at its end."""
    import uvloop  # only what serves has it

    async def within() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        return await main

    found: T = uvloop.run(within())
    return found


class DaemonThreads(ThreadPoolExecutor):
    """Threads that nobody waits for: a read from storage that hangs never ends."""

    def __init__(self, most: int = _THREADS) -> None:
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


#: Reads at once, those included that storage never answers.
_READS_AT_ONCE: Final = 8
READ_LIMIT_S: Final = 30.0


class StorageReader:
    """Runs reads in daemon threads, which need not end before the process does.

    A read from storage that hangs cannot be ended, only left behind; such reads keep their place,
    so that there are never more than a few.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_READS_AT_ONCE)
        self._steps = 0  #: times that a read was seen to go on
        self._threads = DaemonThreads(_READS_AT_ONCE)

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
                loop.call_soon_threadsafe(self._places.release)

        read.add_done_callback(ended)
        return await self._watched(what, asyncio.wrap_future(read), steps)

    async def _place(self, what: str) -> None:
        while True:
            before = self._steps
            try:
                async with asyncio.timeout(2.0 * READ_LIMIT_S):
                    await self._places.acquire()
                return
            except TimeoutError:
                if self._steps == before:  # storage hangs; else others are large
                    raise _stalled(what, 2.0 * READ_LIMIT_S) from None

    async def _watched(self, what: str, done: asyncio.Future[T], steps: Callable[[], int]) -> T:
        before = -1
        while not done.done() and before != (now := steps()):
            before = now
            self._steps += 1
            await asyncio.wait([done], timeout=READ_LIMIT_S)
        if not done.done():
            done.cancel()
            raise _stalled(what, READ_LIMIT_S)
        return done.result()


def _stalled(what: str, limit_s: float) -> RepositoryError:
    return RepositoryError(what, f"nothing to be read for {limit_s:g} s", "storage that answers")


def wait_for_turns() -> None:
    """Let a model that computes on this core finish its time slice before requests are read.

    Else every packet of every request interrupts it, for work of 0.1 ms: in overload that is a
    quarter of the core. Where a core is idle it is taken at once. Only the thread that serves is
    scheduled so; processes begun from here on are scheduled as usual.
    """
    with suppress(OSError):  # forbidden in some sandboxes
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system does: both transports keep 1,024 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """Collect what starting left, and look at the rest rarely.

    Requests make no cycles, and a collection in the middle of one walks everything that was ever
    loaded: tens of milliseconds on somebody's deadline.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
