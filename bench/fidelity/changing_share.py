"""A partition whose share changes under traffic, by the engine that serves."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from bench.fidelity.stand import Stand
from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    PlanSolved,
    ReleasePartition,
    SolvePlan,
)
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Callbacks, Outcome, Reply
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.runtime.plan_solver import GiveUp, OnPlanned
from interlace.runtime.runtime import Observer, Runtime

_PATIENT_MS: Final = 60_000.0
_LIMIT_S: Final = 60.0


def engine_of(gpu: Gpu) -> Engine:
    """One for such an accelerator; the plan says all, so any system will do."""
    return Engine(Fleet((gpu,)), resolve("triton"))


class ChangingShare:
    """An engine on a stand's device, taken for ``gpu``, that serves the stand's one model.

    Its plan is one partition, of the share that it was last told. ``replies`` are with the time at
    which they came, in ms.
    """

    def __init__(self, stand: Stand, gpu: Gpu, observers: Sequence[Observer]) -> None:
        self._stand, self._gpu = stand, gpu
        (self._opened,) = stand.opened.values()
        self.rows = self._opened.model.signature.max_batch
        self._engine = engine_of(gpu)
        devices = {gpu.id: stand.device}
        self._runtime = Runtime(
            self._engine, stand.clock, devices, self._solve, observers, epoch_ms=float("inf")
        )
        self._share_pct = 0
        self.sent = 0
        self.replies: list[tuple[float, Reply]] = []

    async def go_to(self, share_pct: int) -> tuple[float, float]:
        """Plan that share and wait until it stands and nothing else does; from when to when."""
        began_ms = self._stand.clock.now_ms()
        first, self._share_pct = self._share_pct == 0, share_pct
        self._runtime.deliver(ModelsDeployed((self._deployment(),) if first else ()))
        end_s = time.monotonic() + _LIMIT_S
        while not self._stands():
            if time.monotonic() > end_s:
                raise TimeoutError(f"a share of {share_pct} % did not stand in {_LIMIT_S:g} s")
            await asyncio.sleep(0.001)
        return began_ms, self._stand.clock.now_ms()

    def send(self) -> None:
        """One request."""
        self.sent += 1
        number, now_ms = self._runtime.next_id(), self._stand.clock.now_ms()
        request = self._opened.request(number, now_ms, _PATIENT_MS)
        self._runtime.submit(request, Callbacks(self._answered))

    async def end(self, traffic: asyncio.Task[None]) -> None:
        """Send no more, wait for the last answers, and give every partition back."""
        traffic.cancel()
        with suppress(asyncio.CancelledError):
            await traffic
        while self._runtime.unanswered:
            await asyncio.sleep(0.002)
        for live in self._engine.snapshot().partitions.values():
            await self._stand.rig.do(ReleasePartition(live.gpu, live.id), _LIMIT_S)

    @property
    def lost(self) -> int:
        """Requests without a good answer."""
        return self.sent - sum(reply.outcome is Outcome.OK for _, reply in self.replies)

    def _solve(self, question: SolvePlan, done: OnPlanned) -> GiveUp:
        slot = Slot(self._opened.model.key, self.rows, 100.0)
        plan = Plan((Partition("p", self._gpu.id, self._share_pct, (slot,)),))
        self._stand.clock.call_soon(lambda: done(PlanSolved(question.ticket, plan)))
        return lambda: None

    def _stands(self) -> bool:
        engine = self._engine.snapshot()
        shares_pct = {live.share_pct for live in engine.partitions.values()}
        planned = bool(engine.target.partitions)
        return planned and engine.reached and shares_pct == {self._share_pct}

    def _deployment(self) -> Deployment:
        key, point = self._opened.model.key, LatencyPoint(1.0, 1.0, 1.0, 1)
        points = {(rows, s): point for rows in (1, self.rows) for s in self._gpu.shares_pct}
        profile = Profile(key, "", self._gpu.kind, 1 << 20, 1 << 20, points)
        return Deployment(Demand(key, 100.0, _PATIENT_MS, self.rows), profile)

    def _answered(self, reply: Reply) -> None:
        self.replies.append((self._stand.clock.now_ms(), reply))
        self._runtime.delivered(reply)
