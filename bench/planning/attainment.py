"""A plan put to the test: random arrivals in virtual time, and who was answered within the SLO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from interlace.core.hardware import Fleet
from interlace.core.messages import Deployment, ModelsDeployed, PlanSolved, SolvePlan
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile, Profiles
from interlace.core.request import Outcome, Reply, Request
from interlace.device.simulated.device import SimulatedDevice
from interlace.engine.engine import Engine
from interlace.policy.base import System
from interlace.policy.catalog import resolve as row
from interlace.runtime.clock import SimClock
from interlace.runtime.runtime import Runtime

#: Time for partitions to be carved and models loaded, before anything arrives.
_WARM_MS = 5_000.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """A planner that has made up its mind."""

    plan: Plan

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        return self.plan


@dataclass(slots=True)
class _Counts:
    """Requests sent and answered in time, per model."""

    sent: Counter[str] = field(default_factory=Counter)
    in_time: Counter[str] = field(default_factory=Counter)

    def answered(self, reply: Reply) -> None:
        if reply.outcome is Outcome.OK:
            self.in_time[reply.request.model] += 1


def simulate(
    plan: Plan,
    demand: Sequence[Demand],
    fleet: Fleet,
    profiles: Mapping[str, Profile],
    seconds: float = 20.0,
    seed: int = 0,
    system: str = "interlace",
) -> Mapping[str, float]:
    """Part of each model's requests answered within its SLO; refusals count as violations.

    Arrivals are a renewal process of gamma gaps with the demand's rate and ``cv``. The plan is
    kept; dispatch and admission are the system's.
    """
    pinned = replace(row(system), planner=Pinned(plan))
    clock = SimClock()
    runtime = _runtime(pinned, fleet, profiles, clock)
    counts = _Counts()
    runtime.deliver(
        ModelsDeployed(tuple(Deployment(one, profiles[one.model], 65_536) for one in demand))
    )
    random = np.random.default_rng(seed)
    for one in demand:
        if one.rows_per_s > 0:
            _Source(runtime, one, random.spawn(1)[0], seconds, counts).start()
    clock.run(_WARM_MS + seconds * 1000.0 + 2 * max(one.slo_ms for one in demand))
    return {m: counts.in_time[m] / sent for m, sent in counts.sent.items()}


class _Source:
    """Sends one model's requests, each when its time comes."""

    def __init__(
        self,
        runtime: Runtime,
        demand: Demand,
        random: np.random.Generator,
        seconds: float,
        counts: _Counts,
    ) -> None:
        count = int(demand.rows_per_s * seconds * 1.5) + 20
        shape = 1.0 / demand.cv**2
        gaps = random.gamma(shape, 1000.0 / demand.rows_per_s / shape, count)
        times = _WARM_MS + np.cumsum(gaps)
        self._times = times[times < _WARM_MS + seconds * 1000.0].tolist()
        self._runtime = runtime
        self._demand = demand
        self._counts = counts
        self._next = 0

    def start(self) -> None:
        if self._times:
            self._runtime.clock.call_at(self._times[0], self._send)

    def _send(self) -> None:
        now_ms, one = self._runtime.clock.now_ms(), self._demand
        request = Request(self._runtime.next_id(), one.model, now_ms, now_ms + one.slo_ms)
        self._counts.sent[one.model] += 1
        self._runtime.submit(request, self._answered)
        self._next += 1
        if self._next < len(self._times):
            self._runtime.clock.call_at(self._times[self._next], self._send)

    def _answered(self, reply: Reply) -> None:
        self._counts.answered(reply)
        self._runtime.delivered(reply)


def _runtime(
    system: System, fleet: Fleet, profiles: Mapping[str, Profile], clock: SimClock
) -> Runtime:
    devices = {gpu.id: SimulatedDevice(gpu, clock, profiles) for gpu in fleet.gpus}

    def solve(question: SolvePlan, done: object) -> None:
        plan = system.planner(question.demand, fleet, question.profiles, question.current)
        clock.call_soon(lambda: done(PlanSolved(question.ticket, plan)))  # type: ignore[operator]

    runtime = Runtime(Engine(fleet, system), clock, devices, solve)
    runtime.start()
    return runtime
