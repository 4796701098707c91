"""Open loop: calls leave when they are due, whatever became of those before."""

from __future__ import annotations

import ctypes
import heapq
import random
import select
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat
from typing import Final, NamedTuple

from interlace.core.profile import quantile
from interlace.core.user_errors import UserError
from interlace.load.connections import (
    ClientConnection,
    ConnectionPool,
    EncodedCall,
    no_collection,
)
from interlace.load.v2_client import LoadCall

#: Status of a call that got no answer before the run ended.
UNANSWERED: Final = -2
#: Lateness of the generator itself above this part of the SLO makes its figures doubtful.
LAG_OF_SLO_MAX: Final = 0.1


class CallSample(NamedTuple):
    """One call: which (``tag``), when it was due, how long it took from then, how it ended.

    Times are seconds, ``due_s`` and ``sent_s`` from the start of the run (``sent_s`` below 0: it
    never left). ``status`` is that of HTTP, ``BROKEN`` or ``UNANSWERED``; ``reason`` the server's
    own for anything but 200. ``crowded``: every connection was taken when it was due.
    """

    tag: int
    due_s: float
    latency_s: float
    status: int
    sent_s: float = -1.0
    crowded: bool = False
    reason: str = ""


class LoadRun(NamedTuple):
    """A run: its samples, its length, and the share of it the generator was not asleep."""

    samples: list[CallSample]
    seconds: float
    busy: float


def percentile(values: Sequence[float], pct: float) -> float | None:
    """The smallest value that ``pct`` per cent do not exceed; None of nothing."""
    return quantile(sorted(values), pct / 100) if values else None


def lags_s(samples: Sequence[CallSample]) -> list[float]:
    """How late the generator sent each call for which it had a connection."""
    return [one.sent_s - one.due_s for one in samples if one.sent_s >= 0 and not one.crowded]


@dataclass(frozen=True, slots=True)
class ModelLoadReport:
    """One model's figures. Latencies in ms, from the time a request was due, of answers with 200.

    ``attainment`` is the part of all requests answered well within the SLO; ``lag_p99_ms`` how
    late the generator itself sent where a connection was free; ``crowded`` counts requests that
    had to wait for one.
    """

    model: str
    slo_ms: float | None
    requests: int
    offered_rps: float
    answered_rps: float
    goodput_rps: float
    attainment: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    refused: dict[str, int]
    refusal_p99_ms: float | None
    unanswered: int
    crowded: int
    lag_p99_ms: float | None

    @property
    def doubtful(self) -> bool:
        """The generator was too late for its figures to be believed."""
        if self.lag_p99_ms is None or self.slo_ms is None:
            return False
        return self.lag_p99_ms > LAG_OF_SLO_MAX * self.slo_ms


def report(
    model: str, slo_ms: float | None, samples: Sequence[CallSample], seconds: float
) -> ModelLoadReport:
    """The figures of one model's calls, which were sent over ``seconds``."""
    well_ms = sorted(s.latency_s * 1e3 for s in samples if s.status == 200)
    good = len(well_ms) if slo_ms is None else sum(taken <= slo_ms for taken in well_ms)
    refused = [s for s in samples if s.status not in (UNANSWERED, 200)]
    refused_after_ms = [(s.due_s + s.latency_s - s.sent_s) * 1e3 for s in refused]
    return ModelLoadReport(
        model=model,
        slo_ms=slo_ms,
        requests=len(samples),
        offered_rps=len(samples) / seconds,
        answered_rps=len(well_ms) / seconds,
        goodput_rps=good / seconds,
        attainment=good / len(samples) if samples else 0.0,
        p50_ms=percentile(well_ms, 50),
        p95_ms=percentile(well_ms, 95),
        p99_ms=percentile(well_ms, 99),
        p999_ms=percentile(well_ms, 99.9),
        refused=dict(Counter(s.reason for s in refused).most_common()),
        refusal_p99_ms=percentile(refused_after_ms, 99),
        unanswered=len(samples) - len(well_ms) - len(refused),
        crowded=sum(s.crowded for s in samples),
        lag_p99_ms=percentile([lag_s * 1e3 for lag_s in lags_s(samples)], 99),
    )


class ArrivalProcess(StrEnum):
    """How send times are drawn."""

    POISSON = "poisson"
    UNIFORM = "uniform"


class Arrival(NamedTuple):
    """A call due ``due_s`` seconds after the start; ``tag`` says which of the calls."""

    due_s: float
    tag: int


def send_times(process: ArrivalProcess, rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Ascending send times in seconds from the start, all before ``seconds``.

    ``poisson`` draws exponential gaps (independent callers); ``uniform`` spaces them evenly.
    """
    if process is ArrivalProcess.UNIFORM:
        return [index / rate_rps for index in range(int(rate_rps * seconds))]
    chance, at_s = random.Random(seed), 0.0
    times: list[float] = []
    while rate_rps > 0 and (at_s := at_s + chance.expovariate(rate_rps)) < seconds:
        times.append(at_s)
    return times


def merged(times_s: Sequence[Sequence[float]]) -> Iterator[Arrival]:
    """Ascending sequences of send times as one; the tag is the position of the sequence."""
    tagged = (zip(times, repeat(tag)) for tag, times in enumerate(times_s))
    return (Arrival(*one) for one in heapq.merge(*tagged))


_PR_SET_TIMERSLACK: Final = 29
#: Connections opened before the first arrival.
AHEAD: Final = 16
#: Between preparing and the first send.
_START_S: Final = 0.01
_LONGEST_SLEEP_S: Final = 0.05


class _Due(NamedTuple):
    """A call whose time has come, and in which round of the loop that was seen."""

    arrival: Arrival
    round: int


class _Sent(NamedTuple):
    """A call under way. ``crowded``: every connection was taken when it was due."""

    arrival: Arrival
    sent_s: float
    crowded: bool


class OpenLoop:
    """One run over a sequence of arrivals.

    A call whose time has come while every connection is taken waits here, and the wait counts: its
    latency runs from when it was due. So a slow server cannot slow the clock it is measured by (no
    coordinated omission).
    """

    def __init__(
        self,
        calls: Sequence[EncodedCall],
        arrivals: Iterable[Arrival],
        limit: int,
        ahead: int = AHEAD,
        end_with_server: bool = False,
    ) -> None:
        """Open ``ahead`` of the ``limit`` connections to each address.

        With ``end_with_server`` a run ends with an error when no connection is left and none can be
        opened; without, calls that cannot be sent count as unanswered.

        Raises:
            OSError: nobody listens.
        """
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._calls, self._arrivals = calls, iter(arrivals)
        self._end_with_server = end_with_server
        self._pool = ConnectionPool(limit)
        try:
            for call in {call.address: call for call in calls}.values():
                self._pool.prepare(call, ahead)
        except OSError:
            self._pool.close()
            raise
        self._samples: list[CallSample] = []
        self._waiting: deque[_Due] = deque()
        self._running: dict[ClientConnection, _Sent] = {}
        self._next = next(self._arrivals, None)
        self._round = 0
        self._slept_s = self._start_s = self._last_s = 0.0

    def run(self, drain_s: float) -> LoadRun:
        """Play every arrival, then wait up to ``drain_s`` for answers.

        Raises:
            OSError: the server is gone, and that is to end the run.
        """
        with no_collection():
            try:
                return self._play(drain_s)
            finally:
                self._pool.close()

    def _play(self, drain_s: float) -> LoadRun:
        self._start_s = time.perf_counter() + _START_S
        while self._next or self._waiting or self._running:
            now_s = self._now_s()
            if self._next is None and now_s > self._last_s + drain_s:
                break
            self._admit(now_s)
            self._send()
            self._wait(self._next.due_s if self._next else self._last_s + drain_s)
        length_s = self._now_s()
        for sent in self._running.values():
            self._enter(sent, UNANSWERED)
        for due in self._waiting:
            self._enter(_Sent(due.arrival, -1.0, True), UNANSWERED)
        return LoadRun(self._samples, length_s, 1 - self._slept_s / length_s)

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s

    def _admit(self, now_s: float) -> None:
        self._round += 1
        while self._next is not None and self._next.due_s <= now_s:
            self._waiting.append(_Due(self._next, self._round))
            self._last_s = self._next.due_s
            self._next = next(self._arrivals, None)

    def _send(self) -> None:
        """Send what waits, oldest first, as far as connections allow."""
        while self._waiting:
            arrival, seen = self._waiting[0]
            call = self._calls[arrival.tag]
            sent = _Sent(arrival, self._now_s(), seen < self._round)
            try:
                connection = self._pool.take(call)
            except OSError:
                if self._end_with_server and not self._running:
                    raise
                self._waiting.popleft()
                self._enter(sent, UNANSWERED)
                continue
            if connection is None:
                return
            self._waiting.popleft()
            self._running[connection] = sent
            connection.start(call)

    def _wait(self, until_s: float) -> None:
        """Sleep until an answer or ``until_s``, to a microsecond; enter what ended."""
        before_s = self._now_s()
        left_s = min(until_s - before_s, _LONGEST_SLEEP_S)
        if left_s > 0:
            # epoll's timeout is in milliseconds, select's in microseconds: the one is in the other.
            select.select([self._pool.epoll], [], [], left_s)
        self._slept_s += self._now_s() - before_s
        for connection, status in self._pool.ended(self._pool.epoll.poll(0)):
            self._enter(self._running.pop(connection), status, connection.reason)

    def _enter(self, sent: _Sent, status: int, reason: str = "") -> None:
        tag, due_s = sent.arrival.tag, sent.arrival.due_s
        latency_s = self._now_s() - due_s
        self._samples.append(
            CallSample(tag, due_s, latency_s, status, sent.sent_s, sent.crowded, reason)
        )


#: How long answers are waited for after the last send.
_DRAIN_S: Final = 10.0


def load_test(
    calls: Sequence[LoadCall], times_s: Sequence[Sequence[float]], connections: int, seconds: float
) -> list[ModelLoadReport]:
    """Send each call at its own times (ascending, seconds from the start); a report a call.

    What is unanswered 10 s after the last send stays so. Rates in the reports are over ``seconds``.

    Raises:
        UserError: the server does not take connections, or is gone before the end.
    """
    encoded = [call.encoded for call in calls]
    try:
        loop = OpenLoop(encoded, merged(times_s), connections, connections, end_with_server=True)
        samples = loop.run(_DRAIN_S).samples
    except OSError as error:
        raise UserError(
            f"{encoded[0].host}:{encoded[0].port}: gone, or takes no connections ({error})"
        ) from None
    return [
        report(call.model, call.slo_ms, [one for one in samples if one.tag == tag], seconds)
        for tag, call in enumerate(calls)
    ]
