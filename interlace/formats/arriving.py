"""Weights on their way: a thread reads a file's extents into memory, one after the other.

It gives way to threads that execute. So what an execution waits for it reads itself, unless the
thread has begun to: else a request would wait as long as the thread does for a core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Final

from interlace.formats.extents_file import ExtentsFile
from interlace.formats.runner import CANCELLED, Arrived

#: Copies give way to threads that execute or serve: on a core that those want all of they have 110
#: parts to 1,024. With five steps neighbours were delayed nearly as much as with none.
_NICE: Final = 10


def _nothing_more(index: int) -> None:
    """Weights that are there need nothing more."""


class ArrivingWeights:
    """Begins at once. ``there`` is called as each extent has come, ``done`` once in the thread."""

    def __init__(
        self,
        file: ExtentsFile,
        places: Mapping[int, int],
        memory: memoryview,
        done: Callable[[Arrived], None],
        there: Callable[[int], None] = _nothing_more,
    ) -> None:
        self._file = file
        self._places = dict(sorted(places.items()))
        self._memory = memory
        self._done = done
        self._there = there
        self._came = {index: Event() for index in self._places}
        self._left = set(self._places)  #: nobody has begun to read these
        self._taking = Lock()
        self._disk_bytes = 0
        self._stopped = False
        self.failure = ""
        self.over = False
        self._thread = Thread(target=self._read_all, name="weights", daemon=True)
        self._thread.start()

    def wait(self, index: int) -> None:
        """Until that extent has come, if it is on its way; read here if nobody reads it yet.

        Raises:
            OSError: it cannot be read, or was cancelled.
        """
        if (came := self._came.get(index)) is not None:
            self._read(index)
            came.wait()
            if self.failure:
                raise OSError(self.failure)

    def cancel(self) -> None:
        """Read no further than the extent that is being read."""
        self._stopped = True

    def end(self) -> None:
        """Read no further, and wait until nothing is read."""
        self._stopped = True
        self._thread.join()

    def _read_all(self) -> None:
        os.nice(_NICE)  # of this thread alone
        began = perf_counter()
        for index, came in self._came.items():
            self._read(index)
            came.wait()  # whoever reads it
        self.over = True
        self._done(Arrived(self.failure, self._disk_bytes, 1e3 * (perf_counter() - began)))

    def _read(self, index: int) -> None:
        """Read an extent, unless another thread has begun to, or nothing is read any more."""
        with self._taking:
            if index not in self._left:
                return
            self._left.remove(index)
            if self._stopped and not self.failure:
                self.failure = CANCELLED
        if not self.failure:
            try:
                if not self._file.cached(index):
                    self._disk_bytes += self._file.extents[index].nbytes
                self._file.read(index, self._memory, self._places[index])
                self._there(index)
            except (OSError, ValueError) as error:
                self.failure = str(error)
        self._came[index].set()
