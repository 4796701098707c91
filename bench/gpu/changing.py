"""Comparison 2: what a change of shares costs while a model is served at full load.

A plan of one partition goes to and fro between two shares, while as many requests wait as fill the
next batch twice. The gap is the time between two executions around a change, begin less end by the
GPU's own clock, whose step is told; and nothing may be dropped.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, inf
from typing import Final, NamedTuple

from bench.fidelity.changing_share import ChangingShare
from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.lanes import middle, quantile
from bench.gpu.opened import on_each
from bench.gpu.rows import Row, judged, law, seen
from interlace.core.messages import Command, Event, Run, WorkFinished
from interlace.sim.recorder import Recorder

_MODEL: Final = ("resnet50",)
_GAP_US: Final = 50.0


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened: gaps in ms around changes and otherwise, and how long each change took.

    ``step_ns`` is that of the device's clock; 0 if it has none, and the gaps are as the engine saw
    them.
    """

    usual_ms: list[float]
    around_ms: list[float]
    took_ms: list[float]
    sent: int
    lost: int
    step_ns: int = 0


class Ran(NamedTuple):
    """One batch, by some clock."""

    partition: str
    began_ms: float
    ended_ms: float


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """Gaps of engine and device together; on green, then on MPS."""

    async def ask(opened: Stand, kind: str) -> AsyncIterator[Row]:
        count = bench.size(30, 2) if kind == "green" else 1
        for row in told(kind, await changed(opened, count, bench.size(0.15, 0.05))):
            yield row

    async for row in on_each(bench, ("green", "mps"), _MODEL, ask):
        yield row


def told(kind: str, found: Changes) -> Iterator[Row]:
    """The rows of one device."""
    usual = middle(found.usual_ms)
    gaps_us = [one * 1000.0 for one in found.around_ms]
    clock = f"its clock steps by {found.step_ns} ns" if found.step_ns else "as the engine saw it"
    p99_us = quantile(gaps_us, 0.99) if gaps_us else float("nan")
    yield judged(
        f"gap of a change under load ({kind})", "p99 at most 50 us",
        f"p50 {middle(gaps_us) if gaps_us else float('nan'):.0f} us, p99 {p99_us:.0f} us over "
        f"{len(gaps_us)} changes; usually {usual * 1000:.0f} us lie between two batches; {clock}",
        p99_us <= _GAP_US, usual_us=usual * 1000.0, gaps_us=gaps_us, step_ns=found.step_ns,
    )  # fmt: skip
    yield seen(
        f"from plan to standing ({kind})", f"{middle(found.took_ms):.1f} ms", took_ms=found.took_ms
    )
    yield law(
        f"requests lost ({kind})", "none", f"{found.lost} of {found.sent}", not found.lost,
        sent=found.sent, lost=found.lost,
    )  # fmt: skip


async def changed(opened: Stand, changes: int, seconds: float) -> Changes:
    """So many changes to and fro, ``seconds`` of serving between them."""
    recorder, gpu = Recorder(), opened.device.gpu
    ends: list[tuple[str, int, int]] = []

    def see(now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, WorkFinished) and isinstance(event.work, Run) and not event.failure:
            ends.append((event.work.partition, event.timing.began_ns, event.timing.ended_ns))

    run = ChangingShare(opened, gpu, [recorder, see])
    shares = (half_pct(gpu), gpu.shares_pct[-1])
    for share in (*shares, shares[0]) if changes > 1 else shares[:1]:
        await run.go_to(share)  # where there are several, each has been made before
    traffic = asyncio.create_task(_keep_waiting(run))
    await asyncio.sleep(seconds)
    took_ms = []
    for number in range(changes):
        began_ms, ended_ms = await run.go_to(shares[(number + 1) % 2])
        took_ms.append(ended_ms - began_ms)
        await asyncio.sleep(seconds)
    await run.end(traffic)
    step_ns = clock_step_ns(ends)
    ran = [Ran(name, began / 1e6, ended / 1e6) for name, began, ended in ends]
    if not step_ns:
        ran = [Ran(one.partition, one.started_ms, one.ended_ms) for one in recorder.executions]
    usual, around = gaps_ms(ran)
    return Changes(usual or [0.0], around, took_ms, run.sent, run.lost, step_ns)


async def _keep_waiting(run: ChangingShare) -> None:
    """Two batches' worth of requests wait at all times."""
    while True:
        while run.sent - len(run.replies) < 3 * run.rows:
            run.send()
        await asyncio.sleep(0)


def gaps_ms(ran: Iterable[Ran]) -> tuple[list[float], list[float]]:
    """How long nothing ran before each batch: of a partition that ran the one before, of another.

    Between two of different partitions lies a change.
    """
    usual: list[float] = []
    around: list[float] = []
    ended_ms = -inf
    for before, after in pairwise(sorted(ran, key=lambda one: one.began_ms)):
        ended_ms = max(ended_ms, before.ended_ms)
        same = before.partition == after.partition
        (usual if same else around).append(max(0.0, after.began_ms - ended_ms))
    return usual, around


def clock_step_ns(ends: Sequence[tuple[str, int, int]]) -> int:
    """The step of the clock that these were read from, found in what it said; 0 without a clock.

    All readings differ by whole steps, so that the step divides every difference.
    """
    times_ns = sorted({time_ns for _, *both in ends for time_ns in both})
    if len(times_ns) < 2 or not times_ns[0]:
        return 0
    return gcd(*(after - before for before, after in pairwise(times_ns)))
