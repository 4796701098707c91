"""The CPU device's own counterparts: a worker replaced under traffic, weights shared by workers."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from bench.fidelity.network import network, write_network
from bench.fidelity.stand import Stand, cores
from bench.harness import processes
from bench.hosting_gaps import Gaps
from interlace.core.hardware import Fleet, Trait
from interlace.core.messages import (
    CreatePartition,
    Deployment,
    Load,
    ModelsDeployed,
    PlanSolved,
    ReleasePartition,
    SolvePlan,
)
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Batch, Outcome, Reply
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.runtime.plan_solver import OnPlanned
from interlace.runtime.runtime import Runtime

_EVERY_S: Final = 0.004
_PATIENT_MS: Final = 60_000.0
_LIMIT_S: Final = 60.0


class Changed(NamedTuple):
    """A share that changed under traffic. Times in ms: the longest without a reply around the
    change and before it, the longest in which no worker held the model, from plan to standing."""

    down_ms: float
    usual_ms: float
    hostless_ms: float
    change_ms: float
    sent: int
    lost: int


@contextmanager
def _repository(width: int, layers: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="interlace-primitives-") as folder:
        root = Path(folder)
        write_network(root, network(width, layers), "slo_ms = 1000\nmax_batch = 4\n")
        yield root


def changed(overlapped: bool, seconds: float = 1.0) -> Changed:
    """From one core to two while requests flow; the old worker stays until the new one stands,
    or makes room for it first."""
    with _repository(512, 2) as root:
        return asyncio.run(_changed(root, overlapped, seconds))


async def _changed(root: Path, overlapped: bool, seconds: float) -> Changed:
    async with Stand(root, ["network"]) as stand:
        run = _Change(stand, overlapped)
        await run.go_to(50)
        traffic = asyncio.create_task(run.send())
        await asyncio.sleep(seconds)
        began_ms = stand.clock.now_ms()
        change_ms = await run.go_to(100)
        await asyncio.sleep(seconds)
        run.on = False
        await traffic
        found = run.found(began_ms, change_ms)
        await run.retire()
        return found


class _Change:
    """An engine on the stand's device whose plan is one partition of a share that changes."""

    def __init__(self, stand: Stand, overlapped: bool) -> None:
        self._stand = stand
        (self._opened,) = stand.opened.values()
        gpu = stand.device.gpu
        traits = gpu.traits if overlapped else gpu.traits - {Trait.OVERLAPPED_REORGANISATION}
        fleet = Fleet((replace(gpu, traits=traits),))
        self._engine, self._gaps = (
            Engine(fleet, resolve("triton")),
            Gaps(Engine(fleet, resolve("triton"))),
        )
        self._runtime = Runtime(
            self._engine,
            stand.clock,
            {gpu.id: stand.device},
            self._solve,
            [self._gaps],
            epoch_ms=float("inf"),
        )
        self._share_pct = 0
        self.on = True
        self._sent = 0
        self._replies: list[tuple[float, Reply]] = []

    def _solve(self, question: SolvePlan, done: OnPlanned) -> None:
        slot = Slot(self._opened.model.key, 4, 100.0)
        plan = Plan((Partition("p", self._stand.device.gpu.id, self._share_pct, (slot,)),))
        self._stand.clock.call_soon(lambda: done(PlanSolved(question.ticket, plan)))

    async def go_to(self, share_pct: int) -> float:
        """Plan that share and wait until it stands and nothing else does; how long it took."""
        began_ms = self._stand.clock.now_ms()
        first = self._share_pct == 0
        self._share_pct = share_pct
        self._runtime.deliver(ModelsDeployed((self._deployment(),) if first else ()))
        while not self._stands(share_pct):
            await asyncio.sleep(0.002)
        return self._stand.clock.now_ms() - began_ms

    def _stands(self, share_pct: int) -> bool:
        engine = self._engine.snapshot()
        shares_pct = {live.share_pct for live in engine.partitions.values()}
        return bool(engine.target.partitions) and engine.reached and shares_pct == {share_pct}

    def _deployment(self) -> Deployment:
        key = self._opened.model.key
        points = {(b, share): LatencyPoint(1.0, 1.0, 1.0, 1) for b in (1, 4) for share in (50, 100)}
        profile = Profile(key, "", "cpu", 1 << 20, 1 << 20, points)
        return Deployment(Demand(key, 100.0, _PATIENT_MS, 4), profile)

    async def send(self) -> None:
        """A request every few ms until told to stop, then the last answers."""
        while self.on:
            number, now_ms = self._runtime.next_id(), self._stand.clock.now_ms()
            self._sent += 1
            request = self._opened.request(number, now_ms, _PATIENT_MS)
            self._runtime.submit(request, self._answered)
            await asyncio.sleep(_EVERY_S)
        while self._runtime.unanswered:
            await asyncio.sleep(0.002)

    def _answered(self, reply: Reply) -> None:
        self._replies.append((self._stand.clock.now_ms(), reply))
        self._runtime.delivered(reply)

    def found(self, began_ms: float, change_ms: float) -> Changed:
        times = [at_ms for at_ms, _ in self._replies]
        gaps = [(b - a, b) for a, b in pairwise(times)]
        return Changed(
            max(gap for gap, at_ms in gaps if at_ms >= began_ms),
            max(gap for gap, at_ms in gaps if at_ms < began_ms),
            max((gap.until_ms - gap.from_ms for gap in self._gaps.gaps), default=0.0),
            change_ms,
            self._sent,
            self._sent - sum(reply.outcome is Outcome.OK for _, reply in self._replies),
        )

    async def retire(self) -> None:
        for live in self._engine.snapshot().partitions.values():
            await self._stand.rig.do(ReleasePartition(live.gpu, live.id), timeout_s=_LIMIT_S)


def workers_bytes(shared: bool, most: int, width: int = 2048, layers: int = 8) -> list[int]:
    """Memory in bytes of 1 to ``most`` workers that hold the same model and have run it.

    The sum of proportional set sizes: a page that n processes share counts a n-th in each.
    """
    with _repository(width, layers) as root:
        return asyncio.run(_workers_bytes(root, shared, most))


async def _workers_bytes(root: Path, shared: bool, most: int) -> list[int]:
    found: list[int] = []
    async with Stand(root, ["network"], partial(cores, share_weights=shared)) as stand:
        ((key, opened),) = stand.opened.items()
        gpu = stand.device.gpu.id
        before = _others_bytes()
        for index in range(most):
            name = f"worker{index}"
            await stand.rig.do(CreatePartition(gpu, name, 50), _LIMIT_S)
            await stand.rig.do(Load(gpu, name, key), _LIMIT_S)
            request = opened.request(stand.rig.next_id(), stand.clock.now_ms(), _PATIENT_MS)
            batch = Batch(stand.rig.next_id(), key, (request,), 1)
            await stand.rig.run(name, batch, _LIMIT_S)
            found.append(_others_bytes() - before)
        for index in range(most):
            await stand.rig.do(ReleasePartition(gpu, f"worker{index}"), _LIMIT_S)
    return found


def _others_bytes() -> int:
    """Proportional set sizes of this process and its children: sharing moves pages between them."""
    own = os.getpid()
    return processes.pss_bytes([own, *processes.descendants([own])])
