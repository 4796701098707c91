"""A scenario played in virtual time by the engine that serves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import Deployment, ModelsDeployed
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile, Profiles
from interlace.core.request import Callbacks, Request
from interlace.device.base import Device
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.weights import WeightLinks
from interlace.engine.engine import Engine
from interlace.perf.cold_start import HostMemory
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import InlinePlanSolver
from interlace.runtime.runtime import Observer, Runtime
from interlace.sim.apps import SimulatedApps
from interlace.sim.record import AppServed, RunRecord
from interlace.sim.recorder import Recorder
from interlace.sim.scenario import Reserve, SimulatedProvider, Simulation

#: Told now and then how far a run has come: the part of it, from 0 to 1.
OnProgress = Callable[[float], None]

_PARTS = 200


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """A planner that has made up its mind."""

    plan: Plan

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        return self.plan


def simulate(
    scenario: Simulation,
    observers: Sequence[Observer] = (),
    on_progress: OnProgress = lambda part: None,
    recorder: Recorder | None = None,
) -> RunRecord:
    """Play a scenario to its end, every request answered; equal scenarios give equal records.

    A ``recorder`` of one's own may keep less, for runs of hours.
    """
    recorder = recorder or Recorder()
    apps: list[AppServed] = []
    play(scenario, [recorder, *observers], on_progress, on_app=apps.append)
    until_ms = scenario.warm_ms + scenario.arrivals.seconds * 1000.0
    record = recorder.record(scenario.warm_ms, until_ms, [gpu.id for gpu in scenario.fleet.gpus])
    return replace(record, apps=apps)


def play(
    scenario: Simulation,
    observers: Sequence[Observer],
    on_progress: OnProgress = lambda part: None,
    enough: Callable[[], bool] = lambda: False,
    on_app: Callable[[AppServed], None] = lambda ended: None,
) -> None:
    """The same, seen by these observers alone; ``on_app`` hears of each whole request of an app.

    ``enough`` is asked now and then: where it is true the run ends, whoever has no answer yet.
    """
    runtime, clock, _ = warmed(scenario, observers)
    source = _Source(runtime, scenario, on_app)
    length_ms, ended = scenario.arrivals.seconds * 1000.0, False
    with gc_paused():
        source.start()
        for part in range(1, _PARTS + 1):
            clock.run(scenario.warm_ms + length_ms * part / _PARTS)
            on_progress(part / _PARTS)
            if ended := enough():
                break
        longest_ms = max((one.slo_ms for one in scenario.demand), default=0.0)
        while runtime.unanswered and not ended:
            clock.run(clock.now_ms() + longest_ms + 1.0)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the search for reference cycles: a run makes few, and a search visits all records."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def warmed(scenario: Simulation, observers: Sequence[Observer]) -> tuple[Runtime, SimClock, Engine]:
    """Everything deployed, planned and loaded; the clock stands where the trace begins."""
    clock = SimClock()
    runtime, engine = _runtime(scenario, clock, observers)
    deployments = [
        Deployment(one, scenario.belief[one.model], scenario.queue_limit) for one in scenario.demand
    ]
    runtime.deliver(ModelsDeployed(tuple(deployments)))
    clock.run(scenario.warm_ms)
    return runtime, clock, engine


class _Source:
    """Sends a trace's requests, each when its time comes."""

    def __init__(
        self, runtime: Runtime, scenario: Simulation, on_app: Callable[[AppServed], None]
    ) -> None:
        arrivals = scenario.arrivals
        self._runtime = runtime
        self._start_ms = runtime.clock.now_ms()
        self._times_ms: list[float] = arrivals.times_ms.tolist()
        self._which: list[int] = arrivals.which.tolist()
        self._models = arrivals.models
        slos = {one.model: one.slo_ms for one in scenario.demand}
        self._is_app = [name in scenario.apps for name in arrivals.models]
        self._slos_ms = [
            0.0 if is_app else slos[name]
            for name, is_app in zip(arrivals.models, self._is_app, strict=True)
        ]
        max_batch = {one.model: one.max_batch for one in scenario.demand}
        self._apps = SimulatedApps(runtime, scenario.apps, max_batch, on_app)
        self._next = 0
        self._send_next: Callable[[], None] = self._send  # bound once
        self._caller = Callbacks(runtime.delivered)

    def start(self) -> None:
        if self._times_ms:
            self._runtime.clock.call_at(self._start_ms + self._times_ms[0], self._send_next)

    def _send(self) -> None:
        index = self._next
        which = self._which[index]
        now_ms = self._runtime.clock.now_ms()
        model, slo_ms = self._models[which], self._slos_ms[which]
        # The next is asked for first: at equal times a source keeps its place before wakes.
        self._next = index + 1
        if self._next < len(self._times_ms):
            self._runtime.clock.call_at(
                self._start_ms + self._times_ms[self._next], self._send_next
            )
        if self._is_app[which]:
            self._apps.begin(model, index)
            return
        request = Request(self._runtime.next_id(), model, now_ms, now_ms + slo_ms)
        self._runtime.submit(request, self._caller)


def _runtime(
    scenario: Simulation, clock: SimClock, observers: Sequence[Observer]
) -> tuple[Runtime, Engine]:
    system = scenario.system
    if scenario.plan is not None:
        fixed = FixedPlan(scenario.plan)
        system = replace(system, planner=fixed, packer=fixed)
    truth: Mapping[str, Profile] = scenario.truth
    links = WeightLinks()  # accelerators that name the same link share it
    tiers = [gpu.host for gpu in scenario.fleet.gpus if gpu.host is not None]
    host = HostMemory(tiers[0]) if tiers else None  # all are in one host

    def device(gpu: Gpu) -> Device:
        made = scenario.device(gpu, clock, truth)
        if isinstance(made, SimulatedDevice):
            made.weights.links, made.weights.host = links, host
        return made

    reserve = scenario.reserve or Reserve((), 0.0)
    engine = Engine(scenario.fleet, system, reserve.gpus)
    runtime = Runtime(
        engine,
        clock,
        {gpu.id: device(gpu) for gpu in scenario.fleet.gpus},
        InlinePlanSolver(system, clock, scenario.plan_ms),
        observers,
        scenario.epoch_ms,
        SimulatedProvider(reserve, clock, device),
    )
    if scenario.epoch_ms < float("inf"):
        runtime.start()
    return runtime, engine
