"""A descriptor that becomes readable at regular times, while it is switched on."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TICKS_BYTES: Final = 8


class _Times(ctypes.Structure):
    """``struct itimerspec``: interval and first time, in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class TickTimer:
    """Ticks every ``period_us`` between ``start`` and ``stop``.

    Raises:
        OSError: the system has no timer left.
    """

    def __init__(self, period_us: int) -> None:
        seconds, rest_us = divmod(period_us, 1_000_000)
        self._on = _Times(seconds, rest_us * 1000, seconds, rest_us * 1000)
        self.fd: int = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "no timer")

    def start(self) -> None:
        self._set(self._on)

    def stop(self) -> None:
        self._set(_Times())

    def tick(self) -> None:
        """Not readable any more, until the next time."""
        with suppress(BlockingIOError):
            os.read(self.fd, _TICKS_BYTES)

    def close(self) -> None:
        os.close(self.fd)

    def _set(self, times: _Times) -> None:
        if _LIBC.timerfd_settime(self.fd, 0, ctypes.byref(times), None) < 0:
            raise OSError(ctypes.get_errno(), "the timer cannot be set")
