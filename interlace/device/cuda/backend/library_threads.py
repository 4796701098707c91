"""On which threads torch works for a lane, and which context is current there.

cuDNN and cuBLAS keep a handle for each thread, made in the context that is current when the thread
first calls them. Work on a stream of a green context may be refused by a handle of another context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from interlace.device.cuda.driver.api import Driver, GreenContext

#: Where libraries make their handles: in the GPU's primary context, or in the lane's green one.
LibraryContext = Literal["primary", "green"]
#: The same, or what a trial finds when a process starts (``backend.trials``).
LibraryChoice = Literal["auto", "primary", "green"]

T = TypeVar("T")


class LibraryThreads:
    """Torch works on the thread that asks for it: handles are of the primary context."""

    def run(self, green: GreenContext | None, job: Callable[[], T]) -> T:
        """What the job returns; the caller waits. ``None`` stands for streams on all SMs.

        Raises:
            CudaError: the context cannot be made current.
            BaseException: whatever the job raises.
        """
        return job()

    def close(self) -> None:
        """End the threads; nothing of torch runs on the GPU afterwards."""


class ContextThreads(LibraryThreads):
    """A thread for each pair of a caller and a green context, which is current on it: handles are
    of that context. Each caller has threads of its own, so that loading does not delay serving.

    A thread stays until ``close``, its context's end or not: torch gives the handles of a thread
    that ended to the next new one, which may be another context's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # By identity: a context made later may be given the same handle.
        self._threads: dict[tuple[int, int], tuple[GreenContext, ThreadPoolExecutor]] = {}
        self._here = threading.local()

    def run(self, green: GreenContext | None, job: Callable[[], T]) -> T:
        if green is None or getattr(self._here, "green", None) is green:
            return job()

        def entered() -> T:
            self._here.green = green
            self._driver.enter(green)
            return job()

        return self._of(green).submit(entered).result()

    def close(self) -> None:
        for _, thread in self._threads.values():
            thread.shutdown()
        self._threads.clear()

    def _of(self, green: GreenContext) -> ThreadPoolExecutor:
        key = (threading.get_ident(), id(green))
        if key not in self._threads:
            name = f"torch on {green.sms} SMs"
            self._threads[key] = (green, ThreadPoolExecutor(1, thread_name_prefix=name))
        return self._threads[key][1]


def threads_for(context: LibraryContext, driver: Driver) -> LibraryThreads:
    """The threads that have libraries make their handles there."""
    return ContextThreads(driver) if context == "green" else LibraryThreads()
