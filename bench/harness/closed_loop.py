"""Closed loop: a fixed number of connections, each with exactly one call outstanding."""

import time
from collections.abc import Callable

from interlace.load.connections import ConnectionPool, EncodedCall, no_collection
from interlace.load.open_loop import CallSample, LoadRun


def closed_loop(
    call: EncodedCall,
    connections: int,
    seconds: float,
    warm_s: float = 0.3,
    on_measure: Callable[[], None] | None = None,
) -> LoadRun:
    """Calls for ``warm_s`` unmeasured and ``seconds`` measured; ``on_measure`` runs in between."""
    with no_collection():
        return _measure(call, connections, seconds, warm_s, on_measure)


def _measure(
    call: EncodedCall,
    connections: int,
    seconds: float,
    warm_s: float,
    on_measure: Callable[[], None] | None,
) -> LoadRun:
    pool = ConnectionPool(connections)
    pool.prepare(call, connections)
    now = time.perf_counter
    begin = now()
    measured, end = begin + warm_s, begin + warm_s + seconds
    samples: list[CallSample] | None = None
    slept, missing = 0.0, connections
    while (moment := now()) < end:
        if samples is None and moment >= measured:
            if on_measure is not None:
                on_measure()
            samples, slept, measured = [], 0.0, now()
        missing -= _start(pool, call, missing)
        before = now()
        events = pool.epoll.poll(min(0.05, max(0.0, end - before)))
        slept += now() - before
        for connection, status in pool.ended(events):
            if samples is not None:
                samples.append(CallSample(0, 0.0, now() - connection.due_s, status))
            missing += 1
            missing -= _start(pool, call, missing)
    length = now() - measured
    pool.close()
    return LoadRun(samples or [], length, 1 - slept / length)


def _start(pool: ConnectionPool, call: EncodedCall, count: int) -> int:
    """Start up to ``count`` calls; returns how many."""
    for started in range(count):
        try:
            connection = pool.take(call)
        except OSError:
            return started
        if connection is None:
            return started
        connection.due_s = time.perf_counter()
        connection.start(call)
    return count
