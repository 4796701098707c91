"""Comparison 2: what a change of shares costs while a model is served at full load.

A plan of one partition goes to and fro between two shares, while as many requests wait as fill the
next batch twice. The gap is the time between two executions around a change, begin less end by the
GPU's own clock, whose step is told; and nothing may be dropped.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd, inf
from typing import Final, NamedTuple

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Opened, Stand
from bench.gpu.bench import Bench
from bench.gpu.lanes import middle, quantile
from bench.gpu.opened import on_each
from bench.gpu.rows import Row, judged, law, seen
from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Command,
    Deployment,
    Event,
    ModelsDeployed,
    PlanSolved,
    ReleasePartition,
    Run,
    SolvePlan,
    WorkFinished,
)
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome, Reply
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.runtime.plan_solver import OnPlanned
from interlace.runtime.runtime import Runtime
from interlace.sim.recorder import Recorder

_MODEL: Final = ("resnet50",)
_PATIENT_MS: Final = 60_000.0
_LIMIT_S: Final = 60.0
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
    run = _Run(opened)
    gpu = opened.device.gpu
    shares = (half_pct(gpu), gpu.shares_pct[-1])
    for share in (*shares, shares[0]) if changes > 1 else shares[:1]:
        await run.go_to(share)  # where there are several, each has been made before
    traffic = asyncio.create_task(run.send())
    await asyncio.sleep(seconds)
    for number in range(changes):
        began_ms = opened.clock.now_ms()
        await run.go_to(shares[(number + 1) % 2])
        run.changes.append((began_ms, opened.clock.now_ms()))
        await asyncio.sleep(seconds)
    run.on = False
    await traffic
    await run.retire()
    return run.found()


@dataclass(slots=True)
class _Run:
    """An engine on the stand's device whose plan is one partition of a share that changes."""

    opened: Stand
    on: bool = True
    changes: list[tuple[float, float]] = field(default_factory=list)
    _share_pct: int = 0
    _sent: int = 0
    _waiting: int = 0
    _replies: list[Reply] = field(default_factory=list)
    _recorder: Recorder = field(default_factory=Recorder)
    _ends: list[tuple[str, int, int]] = field(default_factory=list)
    _one: Opened = field(init=False)
    _engine: Engine = field(init=False)
    _runtime: Runtime = field(init=False)

    def __post_init__(self) -> None:
        (self._one,) = self.opened.opened.values()
        gpu = self.opened.device.gpu
        self._engine = Engine(Fleet((gpu,)), resolve("triton"))
        devices = {gpu.id: self.opened.device}
        self._runtime = Runtime(
            self._engine,
            self.opened.clock,
            devices,
            self._solve,
            [self._recorder, self._see],
            float("inf"),
        )

    def _see(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if (
            isinstance(event, WorkFinished)
            and isinstance(event.work, Run)
            and event.failure is None
        ):
            timing = event.timing
            self._ends.append((event.work.partition, timing.began_ns, timing.ended_ns))

    @property
    def _rows(self) -> int:
        return self._one.model.signature.max_batch

    def _solve(self, question: SolvePlan, done: OnPlanned) -> None:
        slot = Slot(self._one.model.key, self._rows, 100.0)
        gpu = self.opened.device.gpu.id
        plan = Plan((Partition("p", gpu, self._share_pct, (slot,)),))
        self.opened.clock.call_soon(lambda: done(PlanSolved(question.ticket, plan)))

    async def go_to(self, share_pct: int) -> None:
        """Plan that share and wait until it stands and nothing else does."""
        first, self._share_pct = self._share_pct == 0, share_pct
        self._runtime.deliver(ModelsDeployed((self._deployment(),) if first else ()))
        end_s = time.monotonic() + _LIMIT_S
        while not self._stands(share_pct):
            if time.monotonic() > end_s:
                raise TimeoutError(f"a share of {share_pct} % did not stand in {_LIMIT_S:g} s")
            await asyncio.sleep(0.001)

    def _stands(self, share_pct: int) -> bool:
        engine = self._engine.snapshot()
        shares_pct = {live.share_pct for live in engine.partitions.values()}
        return bool(engine.target.partitions) and engine.reached and shares_pct == {share_pct}

    def _deployment(self) -> Deployment:
        key, shares = self._one.model.key, self.opened.device.gpu.shares_pct
        points = {(b, s): LatencyPoint(1.0, 1.0, 1.0, 1) for b in (1, self._rows) for s in shares}
        profile = Profile(key, "", self.opened.device.gpu.kind, 1 << 20, 1 << 20, points)
        return Deployment(Demand(key, 100.0, _PATIENT_MS, self._rows), profile)

    async def send(self) -> None:
        """Two batches' worth of requests wait at all times."""
        while self.on:
            while self._waiting < 3 * self._rows:
                number, now_ms = self._runtime.next_id(), self.opened.clock.now_ms()
                self._waiting += 1
                self._sent += 1
                self._runtime.submit(self._one.request(number, now_ms, _PATIENT_MS), self._answered)
            await asyncio.sleep(0)
        while self._runtime.unanswered:
            await asyncio.sleep(0.005)

    def _answered(self, reply: Reply) -> None:
        self._waiting -= 1
        self._replies.append(reply)
        self._runtime.delivered(reply)

    async def retire(self) -> None:
        for live in self._engine.snapshot().partitions.values():
            await self.opened.rig.do(ReleasePartition(live.gpu, live.id), _LIMIT_S)

    def found(self) -> Changes:
        """What was seen, by the device's clock if it has one."""
        step_ns = clock_step_ns(self._ends)
        ran = [Ran(name, began / 1e6, ended / 1e6) for name, began, ended in self._ends]
        if not step_ns:
            seen_by_engine = self._recorder.executions
            ran = [Ran(one.partition, one.started_ms, one.ended_ms) for one in seen_by_engine]
        usual, around = gaps_ms(ran)
        lost = sum(reply.outcome is not Outcome.OK for reply in self._replies)
        took = [until - since for since, until in self.changes]
        lost += self._sent - len(self._replies)
        return Changes(usual or [0.0], around, took, self._sent, lost, step_ns)


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
