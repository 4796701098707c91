"""Calls at a time of the wall clock, exact where an event loop's own timers go by milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_LEAST_NS: Final = 1_000  #: a timer of 0 ns is a timer that is off


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class WallTimer:
    """The ``Timer`` of simulated devices in real time: one kernel timer for all of them.

    libuv rounds timers to milliseconds; a timerfd in the loop's poll ends within some 0.05 ms.
    Calls at equal times run in the order they were asked for, none inside ``call_at``. One thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where the system has no such timer."""
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer from the system (timerfd_create)")
        self._loop = loop
        self._start_s = time.perf_counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._spec = _TimerSpec()
        loop.add_reader(self._fd, self._due)

    def now_ms(self) -> float:
        return (time.perf_counter() - self._start_s) * 1000.0

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        entry = (at_ms, next(self._sequence), call)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._set(at_ms)

    def close(self) -> None:
        """Forget every call; a second time does nothing."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._heap.clear()

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew since it ran out
        # What a call asks for in turn waits for the next look, so that the loop gets on.
        now_ms = self.now_ms()
        due: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[2])
        try:
            for call in due:
                call()
        finally:
            if self._heap:
                self._set(self._heap[0][0])

    def _set(self, at_ms: float) -> None:
        if self._fd < 0:
            return
        after_ns = max(_LEAST_NS, int((at_ms - self.now_ms()) * 1e6))
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(after_ns, 1_000_000_000)
        self._settime(self._fd, 0, ctypes.byref(self._spec), None)
