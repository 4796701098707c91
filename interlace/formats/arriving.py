"""Weights on their way: a thread reads a file's extents into memory, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Event, Thread
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
    """Begins at once. ``there`` is called in the thread as each extent has come, ``done`` once."""

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
        self._stopped = False
        self.failure = ""
        self.over = False
        self._thread = Thread(target=self._read_all, name="weights", daemon=True)
        self._thread.start()

    def wait(self, index: int) -> None:
        """Until that extent has come, if it is on its way.

        Raises:
            OSError: it cannot be read, or was cancelled.
        """
        if (came := self._came.get(index)) is not None:
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
        disk_bytes = 0
        for index, at in self._places.items():
            if self._stopped and not self.failure:
                self.failure = CANCELLED
            if not self.failure:
                try:
                    if not self._file.cached(index):
                        disk_bytes += self._file.extents[index].nbytes
                    self._file.read(index, self._memory, at)
                    self._there(index)
                except (OSError, ValueError) as error:
                    self.failure = str(error)
            self._came[index].set()
        self.over = True
        self._done(Arrived(self.failure, disk_bytes, 1e3 * (perf_counter() - began)))
