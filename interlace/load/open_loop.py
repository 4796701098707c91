"""Open loop: arrivals at their own times, latency from when each call was due to be sent."""

from __future__ import annotations

import ctypes
import random
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from interlace.load.call import EncodedCall
from interlace.load.connection import ClientConnection
from interlace.load.pool import ConnectionPool, no_collection
from interlace.load.result import UNANSWERED, CallSample, LoadRun

PR_SET_TIMERSLACK = 29
#: Connections opened before the first arrival.
AHEAD = 16


class Arrival(NamedTuple):
    """A call due at ``due_s`` from the start; ``tag`` says which of the calls."""

    due_s: float
    tag: int


def poisson(rates_rps: Sequence[float], seconds: float, seed: int) -> list[Arrival]:
    """Independent Poisson streams merged, one a rate; the tag is the rate's position."""
    arrivals: list[Arrival] = []
    for tag, rate in enumerate(rates_rps):
        source, due = random.Random(seed * 1009 + tag), 0.0
        while rate > 0 and (due := due + source.expovariate(rate)) < seconds:
            arrivals.append(Arrival(due, tag))
    return sorted(arrivals)


class OpenLoop:
    """One run over a list of arrivals. Calls wait inside when all connections are busy."""

    def __init__(
        self, calls: Sequence[EncodedCall], arrivals: Sequence[Arrival], limit: int
    ) -> None:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._calls, self._arrivals = calls, arrivals
        self._pool = ConnectionPool(limit)
        for call in {(c.proto, c.port): c for c in calls}.values():
            self._pool.prepare(call, AHEAD)
        self._samples: list[CallSample] = []
        self._waiting: deque[Arrival] = deque()
        self._running: dict[ClientConnection, Arrival] = {}
        self._next = 0
        self._slept_s = 0.0
        self._start_s = 0.0

    def run(self, drain_s: float) -> LoadRun:
        """Play every arrival, then wait up to ``drain_s`` for answers."""
        with no_collection():
            return self._play(drain_s)

    def _play(self, drain_s: float) -> LoadRun:
        now = time.perf_counter
        self._start_s = now() + 0.01
        stop = (self._arrivals[-1].due_s if self._arrivals else 0.0) + drain_s
        while True:
            moment = now() - self._start_s
            self._admit(moment)
            self._send()
            over = self._next >= len(self._arrivals) and not self._waiting and not self._running
            if over or moment > stop:
                break
            self._wait(stop)
        length = now() - self._start_s
        self._pool.close()
        lost = [*self._running.values(), *self._waiting]
        self._samples += [CallSample(a.tag, a.due_s, length - a.due_s, UNANSWERED) for a in lost]
        return LoadRun(self._samples, length, 1 - self._slept_s / length)

    def _admit(self, moment_s: float) -> None:
        while self._next < len(self._arrivals) and self._arrivals[self._next].due_s <= moment_s:
            self._waiting.append(self._arrivals[self._next])
            self._next += 1

    def _send(self) -> None:
        """Send what waits, oldest first, as far as connections allow."""
        while self._waiting:
            arrival = self._waiting[0]
            call = self._calls[arrival.tag]
            try:
                connection = self._pool.take(call)
            except OSError:
                self._waiting.popleft()
                self._enter(arrival, UNANSWERED)
                continue
            if connection is None:
                return
            self._waiting.popleft()
            self._running[connection] = arrival
            connection.start(call)

    def _wait(self, stop_s: float) -> None:
        """Sleep until an answer or the next arrival, to a microsecond; enter what ended."""
        before = time.perf_counter()
        due = self._arrivals[self._next].due_s if self._next < len(self._arrivals) else stop_s
        left = min(self._start_s + due - before, 0.05)
        if left > 0:
            select.select([self._pool.epoll], [], [], left)
        self._slept_s += time.perf_counter() - before
        for connection, status in self._pool.ended(self._pool.epoll.poll(0)):
            self._enter(self._running.pop(connection), status)

    def _enter(self, arrival: Arrival, status: int) -> None:
        late = time.perf_counter() - self._start_s - arrival.due_s
        self._samples.append(CallSample(arrival.tag, arrival.due_s, late, status))


def open_loop(
    call: EncodedCall, rate_rps: float, seconds: float, limit: int = 256, seed: int = 1
) -> LoadRun:
    """Poisson arrivals of one call; up to 2 s more for answers."""
    return OpenLoop([call], poisson([rate_rps], seconds, seed), limit).run(2.0)
