"""A mechanism on and off, and what the papers print of the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.gpu.lanes import quantile, ratio
from bench.gpu.rows import Row, judged
from interlace.device.cuda.driver.api import Driver

#: What was measured of one side, by name: see ``_SHOWN``.
Side = Mapping[str, float]

_SHOWN: Final = {
    "p50_ms": ("p50", "ms", 1.0),
    "p99_ms": ("p99", "ms", 1.0),
    "mean_ms": ("mean", "ms", 1.0),
    "idle_ms": ("GPU idle", "ms", 1.0),
    "rps": ("rate", "/s", 1.0),
    "cpu_ms": ("CPU", "ms", 1.0),
    "load_ms": ("load", "ms", 1.0),
    "nbytes": ("memory", "MB", 1e-6),
}


class Published(NamedTuple):
    """Where a paper has this, and by how much its mechanism gains there."""

    figure: str
    gain: float


def side(took_ms: Sequence[float], rows: int = 1, **more: float) -> Side:
    """Latency and rate of batches of ``rows`` that ran one at a time."""
    mean_ms = sum(took_ms) / len(took_ms)
    return {
        "p50_ms": quantile(took_ms, 0.5),
        "p99_ms": quantile(took_ms, 0.99),
        "rps": ratio(1000.0 * rows, mean_ms),
        **more,
    }


def versus(
    what: str, on: Side, off: Side, measure: str, published: Published | None = None, **more: Any
) -> Row:
    """One mechanism: all that was measured of both sides, judged by one ``measure``.

    A gain over 1 is good: rates with over without, everything else without over with.
    """
    gain = gained(on, off, measure)
    words = [
        f"{name} {on[key] * scale:.3g} over {off[key] * scale:.3g} {unit}"
        for key, (name, unit, scale) in _SHOWN.items()
        if key in on and key in off
    ]
    words.append(f"{gain:.2f} times better by {_SHOWN[measure][0]}")
    if published is not None:
        words.append(f"published {published.gain:.2f} ({published.figure})")
    return judged(
        what, "better with it than without", "; ".join(words), gain > 1.0, on=dict(on),
        off=dict(off), measure=measure, gain=gain, figure=published and published.figure,
        published_gain=published and published.gain, **more,
    )  # fmt: skip


def gained(on: Side, off: Side, measure: str) -> float:
    """How many times better the first side is."""
    pair = (on[measure], off[measure]) if measure == "rps" else (off[measure], on[measure])
    return ratio(*pair)


def taken(
    driver: Driver, streams: Sequence[int], go: Callable[[], object], count: int
) -> tuple[list[float], float]:
    """Wall times of launches, one at a time, and the CPU time to launch one, in ms.

    What the CPU takes to wait is left out: that is Sync-lite's subject.
    """
    found: list[float] = []
    cpu_s = 0.0
    for number in range(count + 3):
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        go()
        launched_cpu_s = time.thread_time()
        for stream in streams:
            driver.synchronize(stream)
        if number >= 3:  # the first ones upload graphs
            found.append((time.perf_counter() - began_s) * 1000.0)
            cpu_s += launched_cpu_s - began_cpu_s
    return found, 1000.0 * cpu_s / count
