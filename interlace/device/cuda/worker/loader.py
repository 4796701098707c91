"""One thread that opens, captures and closes models while requests are served."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

#: Jobs after which what models left behind is searched for once.
_THAW: Final = 64


class _LoaderJob(NamedTuple):
    run: Callable[[], Any]
    ended: Callable[[Any], None]


class LoaderThread:
    """Jobs one after the other on a thread of its own; ``drain`` reports those that ended.

    One at a time, since captures are, and since models that load side by side would each see the
    memory that the other takes. ``fileno`` is readable when a job has ended.
    """

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[_LoaderJob | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._open = 0
        self._thread = threading.Thread(target=self._serve, name="loader", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """No job is under way, and every end was reported."""
        return self._open == 0

    def submit(self, run: Callable[[], Any], ended: Callable[[Any], None]) -> None:
        """Have a job done; ``ended`` gets what it returned or raised, inside ``drain``."""
        self._open += 1
        self._jobs.put(_LoaderJob(run, ended))

    def fileno(self) -> int:
        return self._wake

    def drain(self) -> None:
        """Report the jobs that have ended."""
        os.eventfd_read(self._wake)
        while self._ended:
            ended, result = self._ended.popleft()
            self._open -= 1
            ended(result)

    def close(self) -> None:
        """End the thread after what it does now."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self._wake)

    def _serve(self) -> None:
        done = 0
        while (job := self._jobs.get()) is not None:
            try:
                result = job.run()
            except BaseException as error:  # a model's own code may even call sys.exit
                result = error
            done += 1
            freeze_heap(thaw=done % _THAW == 0)
            self._ended.append((job.ended, result))
            os.eventfd_write(self._wake, 1)


def freeze_heap(thaw: bool = False) -> None:
    """Leave everything that is there now out of later searches, after one among what is new.

    A search through torch and a few models stops the process for 50 ms and more, one through what a
    load has left for 3. Cycles of what is set aside are only found when all of it is searched: with
    ``thaw``, now.
    """
    if thaw:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
