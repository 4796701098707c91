"""How long the server waited for a core, while requests lay in their sockets."""

from __future__ import annotations

import asyncio
import os
from typing import Final

_FILE: Final = "/proc/thread-self/schedstat"
_NS_PER_MS: Final = 1e6


class RunDelay:
    """The time the loop's thread was ready but not running before the present turn of the loop.

    What is read in a turn arrived up to so long before it. The kernel counts it (the second figure
    of ``schedstat``, in ns, see proc(5)); where it does not, the wait is taken to be none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn_s = float("-inf")
        self._total_ns = 0
        self._waited_ms = 0.0
        try:
            self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def ms(self) -> float:
        """The wait before this turn; only the first call of a turn reads it."""
        turn_s = self._loop.time()
        if turn_s != self._turn_s and self._file >= 0:
            self._turn_s = turn_s
            total_ns = int(os.pread(self._file, 64, 0).split()[1])
            self._waited_ms = (total_ns - self._total_ns) / _NS_PER_MS if self._total_ns else 0.0
            self._total_ns = total_ns
        return self._waited_ms

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
