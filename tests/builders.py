"""Small worlds for tests: profiles of straight lines, fleets of one machine, whole runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    Command,
    Deployment,
    Event,
    ModelsDeployed,
    ReportSettled,
    ReportStatus,
    SendReply,
    SolvePlan,
)
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.core.request import Callbacks, Reply, Request
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import Physics
from interlace.device.simulated.weights import WeightLinks
from interlace.engine.engine import Engine
from interlace.engine.state import EngineState
from interlace.policy.base import System
from interlace.policy.catalog import CATALOG
from interlace.policy.catalog import resolve as row
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import GiveUp, solve
from interlace.runtime.runtime import Runtime
from interlace.sim.scenario import Reserve, SimulatedProvider
from interlace.testing.worlds import OVERLAP, line_profile, machine


class World:
    """A runtime in virtual time over simulated devices, with what was answered and told."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        fleet: Fleet | None = None,
        system: System | None = None,
        truth: Mapping[str, Profile] | None = None,
        reserve: Reserve | None = None,
        physics: Physics | None = None,
    ) -> None:
        self.profiles = profiles
        self.fleet = fleet or machine()
        self.system = system or row("interlace")
        self.clock = SimClock()
        self._truth = truth or profiles
        self._physics = physics
        self._links = WeightLinks()
        self.devices = {gpu.id: self._device_of(gpu) for gpu in self.fleet.gpus}
        self.reserve = reserve.gpus if reserve else ()
        self.engine = Engine(self.fleet, self.system, self.reserve)
        self.replies: list[tuple[float, Reply]] = []
        self.statuses: list[ReportStatus] = []
        self.log: list[tuple[float, Event, list[Command]]] = []
        self.runtime = Runtime(
            self.engine,
            self.clock,
            self.devices,
            self._solve,
            [lambda now, event, commands: self.log.append((now, event, list(commands)))],
            scaling=reserve and SimulatedProvider(reserve, self.clock, self._device),
        )
        self.settled: list[bool] = []  #: every change of it
        self.after_reply: Callable[[Reply], object] = lambda reply: None
        self.runtime.on_status = self._reported
        self.runtime.start()

    def deploy(self, slo_ms: Mapping[str, float], rows_per_s: float = 0.0) -> None:
        deployments = tuple(
            Deployment(Demand(name, rows_per_s, slo), self.profiles[name])
            for name, slo in slo_ms.items()
        )
        self.runtime.deliver(ModelsDeployed(deployments))

    @property
    def state(self) -> EngineState:
        """The engine's state itself, for tests that look inside the engine."""
        return self.engine._state

    def send(self, model: str, slo_ms: float, rows: int = 1, shape: object = ()) -> Request:
        """Submit one request now."""
        now_ms = self.clock.now_ms()
        request = Request(self.runtime.next_id(), model, now_ms, now_ms + slo_ms, rows, str(shape))
        self.runtime.submit(request, Callbacks(self._answered))
        return request

    def send_at(self, times_ms: Sequence[float], model: str, slo_ms: float) -> None:
        for at_ms in times_ms:
            self.clock.call_at(at_ms, lambda: self.send(model, slo_ms))

    def run(self, for_ms: float) -> None:
        self.clock.run(self.clock.now_ms() + for_ms)

    def reply_of(self, request: Request) -> Reply:
        (reply,) = [r for _, r in self.replies if r.request.id == request.id]
        return reply

    def _reported(self, report: ReportStatus | ReportSettled) -> None:
        if isinstance(report, ReportSettled):
            self.settled.append(report.settled)
        else:
            self.statuses.append(report)

    def _device(self, gpu: Gpu) -> SimulatedDevice:
        self.devices[gpu.id] = self._device_of(gpu)
        return self.devices[gpu.id]

    def _device_of(self, gpu: Gpu) -> SimulatedDevice:
        made = SimulatedDevice(gpu, self.clock, self._truth, physics=self._physics)
        made.weights.links = self._links
        return made

    def _answered(self, reply: Reply) -> None:
        self.replies.append((self.clock.now_ms(), reply))
        self.runtime.delivered(reply)
        self.after_reply(reply)

    def _solve(self, question: SolvePlan, done: object) -> GiveUp:
        answer = solve(self.system.planner, self.system.packer, question)
        self.clock.call_soon(lambda: done(answer))  # type: ignore[operator]
        return lambda: None


def distinct_rows(*parts: str, systems: Iterable[System] = CATALOG.values()) -> list[Any]:
    """Parameters with the names of systems; long where earlier systems have the same parts."""
    rows: list[Any] = []
    seen: list[tuple[str, object]] = []
    for system in systems:
        new = [one for part in parts if (one := (part, getattr(system, part))) not in seen]
        seen += new
        rows.append(pytest.param(system.name, marks=() if new else pytest.mark.long))
    return rows


__all__ = ["OVERLAP", "SendReply", "World", "distinct_rows", "line_profile", "machine"]
