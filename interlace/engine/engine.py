"""The whole server as one function of an event and a time."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    Command,
    CopyInputs,
    EpochEnded,
    Event,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    ModelWithdrawn,
    PartitionLost,
    PlanSolved,
    RefusedUpstream,
    RequestArrived,
    RequestCancelled,
    Run,
    TimedOut,
    Woke,
    WorkFinished,
)
from interlace.engine import timeouts
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.fleet_controller import FleetController
from interlace.engine.live_partition import PartitionState
from interlace.engine.plan_controller import PlanController
from interlace.engine.reconciler import Reconciler
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.state import EngineState
from interlace.policy.base import System


class Engine:
    """Events in, commands out: no clock, no thread, no I/O; equal events give equal commands."""

    def __init__(self, fleet: Fleet, system: System, reserve: Sequence[Gpu] = ()) -> None:
        """``fleet`` is there; what is in ``reserve`` can be had, and given back like the rest."""
        scaler = system.scaler
        self.state = EngineState(fleet, {gpu.id: gpu for gpu in reserve}, bool(reserve))
        self.rates = ArrivalRates(scaler.period_ms, scaler.weight)
        self._serving = RequestScheduler(self.state, system, self.rates)
        self._moving = Reconciler(self.state, self._serving, self.rates)
        scaling = FleetController(self.state, scaler)
        self._placing = PlanController(self.state, self._moving, self.rates, scaler, scaling)

    def handle(self, event: Event, now_ms: float) -> list[Command]:
        """Take in one event and return what is to be done, in order."""
        match event:
            case RequestArrived(request=request):
                return self._serving.arrive(request, now_ms)
            case RefusedUpstream(model=model, rows=rows):
                return self._serving.count_refused(model, rows, now_ms)
            case WorkFinished():
                return self._finished(event, now_ms)
            case RequestCancelled(model=model, request_id=request_id):
                return self._serving.cancel(model, request_id)
            case Woke():
                gpus = [gpu.id for gpu in self.state.fleet.gpus]
                return self._serving.expire(now_ms) + self._serving.dispatch(gpus, now_ms)
            case TimedOut():
                return timeouts.timed_out(self.state, now_ms)
            case EpochEnded():
                return self._serving.expire(now_ms) + self._placing.tick(now_ms)
            case ModelsDeployed():
                return self._placing.deploy(event)
            case ModelWithdrawn(model=model):
                return self._placing.withdraw(model, now_ms)
            case PlanSolved():
                return self._placing.planned(event, now_ms)
            case PartitionLost():
                commands = [
                    command
                    for model in event.blamed
                    for command in self._placing.crashed(model, event.detail, now_ms)
                ]
                return commands + self._moving.lost(event, now_ms)
            case GpuJoined(gpu=gpu):
                self._serving.joined(gpu)
                return self._placing.joined(event, now_ms)
            case GpuLeft():
                return self._placing.left(event, now_ms)

    def _finished(self, finished: WorkFinished, now_ms: float) -> list[Command]:
        match finished.work:
            case Run() as run:
                return self._ran(finished, run, now_ms)
            case CopyInputs() as stage:
                return self._serving.staged(finished, stage, now_ms)
            case work:
                commands = self._placing.blame(work, finished.failure, now_ms)
                return commands + self._moving.finished(finished, work, now_ms)

    def _ran(self, finished: WorkFinished, run: Run, now_ms: float) -> list[Command]:
        commands = self._placing.blame(run, finished.failure, now_ms)
        commands += self._serving.finish(finished, run, now_ms)
        if self._reorganising(run):
            return commands + self._moving.settle(now_ms)
        return commands + self._serving.dispatch((run.gpu,), now_ms)

    def _reorganising(self, run: Run) -> bool:
        """True if the end of this batch may let a change of plan go on."""
        live = self.state.lives.get(run.partition)
        if live is None or live.life is not PartitionState.READY:
            return True
        deployed = self.state.models.get(run.batch.model)
        if deployed is None or deployed.leaving:
            return True
        return all(slot.model != run.batch.model for slot in live.slots)
