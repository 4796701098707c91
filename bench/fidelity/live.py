"""A trace played on the real device by the engine that serves."""

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from bench.fidelity.stand import Stand
from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    ReleasePartition,
    ReportSettled,
    ReportStatus,
)
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Callbacks, Reply
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.runtime.plan_solver import InlinePlanSolver
from interlace.runtime.runtime import Observer, Runtime
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import RunRecord
from interlace.sim.recorder import Recorder
from interlace.sim.run import FixedPlan

_NEVER_MS = float("inf")


async def play(
    stand: Stand,
    system: System,
    plan: Plan,
    demand: Sequence[Demand],
    profiles: Mapping[str, Profile],
    arrivals: Arrivals,
    observers: Sequence[Observer] = (),
) -> RunRecord:
    """The trace's requests sent when their time comes; what became of them, on the device's clock.

    The plan is kept. HTTP has no part in it: what is compared is engine, device and dispatch.
    ``observers`` see the run as its record does, from the first deployment on.
    """
    recorder = Recorder()
    run = _Live(stand, replace(system, planner=FixedPlan(plan)), [recorder, *observers])
    try:
        await run.deploy(demand, profiles)
        with uncollected():
            start_ms = stand.clock.now_ms() + 50.0
            await run.send(arrivals, {one.model: one.slo_ms for one in demand}, start_ms)
    finally:
        await run.retire()
    gpu = stand.device.gpu.id
    return recorder.record(start_ms, start_ms + arrivals.seconds * 1000.0, [gpu])


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile, as in a server once it has started.

    With torch imported a full collection takes 50 to 100 ms, which is several SLOs.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class _Live:
    """One engine on the stand's device, from deployment to the last answer."""

    def __init__(self, stand: Stand, system: System, observers: Sequence[Observer]) -> None:
        self._stand = stand
        fleet = Fleet((stand.device.gpu,))
        self._engine = Engine(fleet, system)
        devices = {stand.device.gpu.id: stand.device}
        self._runtime = Runtime(
            self._engine,
            stand.clock,
            devices,
            InlinePlanSolver(system, stand.clock),
            observers,
            epoch_ms=_NEVER_MS,
        )
        self._runtime.on_status = self._heard
        self._waiting: dict[str, asyncio.Future[ReportStatus]] = {}
        self._idle = asyncio.Event()

    def _heard(self, report: ReportStatus | ReportSettled) -> None:
        if isinstance(report, ReportSettled):
            return
        waiting = self._waiting.pop(report.model, None)
        if waiting is not None:
            waiting.set_result(report)

    async def deploy(self, demand: Sequence[Demand], profiles: Mapping[str, Profile]) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = {one.model: loop.create_future() for one in demand}
        waiting = list(self._waiting.values())
        deployments = (Deployment(one, profiles[one.model], 65_536) for one in demand)
        self._runtime.deliver(ModelsDeployed(tuple(deployments)))
        for tell in await asyncio.gather(*waiting):
            if tell.status != "ready":
                raise RuntimeError(f"{tell.model}: {tell.detail}")
        await asyncio.sleep(0.5)

    async def send(self, arrivals: Arrivals, slos_ms: Mapping[str, float], start_ms: float) -> None:
        clock, names, late_ms = self._stand.clock, arrivals.models, list[float]()
        for at_ms, which in zip(
            (arrivals.times_ms + start_ms).tolist(), arrivals.which.tolist(), strict=True
        ):
            wait_ms = at_ms - clock.now_ms()
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000.0)
            opened = self._stand.opened[names[which]]
            number = self._runtime.next_id()
            # Since when it is due: what the generator is late by is no system's gain.
            request = opened.request(number, at_ms, slos_ms[names[which]])
            late_ms.append(clock.now_ms() - at_ms)
            self._runtime.submit(request, Callbacks(self._answered))
        self._stand.late_ms = float(np.percentile(late_ms, 99)) if late_ms else 0.0
        while self._runtime.unanswered:
            await asyncio.sleep(0.01)

    async def retire(self) -> None:
        """Every partition given back, so that the next run finds the device as this one did."""
        for live in self._engine.snapshot().partitions.values():
            await self._stand.rig.do(ReleasePartition(live.gpu, live.id), timeout_s=30.0)

    def _answered(self, reply: Reply) -> None:
        self._runtime.delivered(reply)
