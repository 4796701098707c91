"""The whole server as one function of an event and a time."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    AppEnded,
    BatchWaits,
    Command,
    CopyInputs,
    CreatePartition,
    EpochEnded,
    Event,
    Evict,
    Fetch,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    ModelWithdrawn,
    PartitionLost,
    PlanChanged,
    PlanSolved,
    ProfileMeasured,
    RefusedUpstream,
    RequestArrived,
    RequestCancelled,
    Run,
    SequenceEnded,
    TierChanged,
    TimedOut,
    Woke,
    WorkFinished,
)
from interlace.core.node import ModelOutlook
from interlace.core.plan import Plan
from interlace.engine import failures, sequences
from interlace.engine.gpu_scaler import GpuScaler
from interlace.engine.live_partition import PartitionState
from interlace.engine.plan_controller import PlanController
from interlace.engine.quarantine import ModelQuarantine
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.reconciler import Reconciler
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.snapshot import EngineSnapshot, take_snapshot
from interlace.engine.state import EngineState
from interlace.policy.base import System


class Engine:
    """Events in, commands out: no clock, no thread, no I/O; equal events give equal commands."""

    def __init__(self, fleet: Fleet, system: System, reserve: Sequence[Gpu] = ()) -> None:
        """``fleet`` is there from the beginning; accelerators in ``reserve`` can be asked for."""
        scaler = system.scaler
        self._state = EngineState(fleet, {gpu.id: gpu for gpu in reserve}, bool(reserve))
        self._rates = RateTracker(scaler.period_ms, scaler.weight)
        self._scheduler = RequestScheduler(self._state, system, self._rates)
        self._quarantine = ModelQuarantine(self._state, self._scheduler)
        self._reconciler = Reconciler(self._state, self._scheduler, self._quarantine, self._rates)
        controller = GpuScaler(self._state, scaler)
        self._plans = PlanController(self._state, self._quarantine, self._rates, scaler, controller)

    def snapshot(self, models: bool = True) -> EngineSnapshot:
        """The state as it is now, as values that do not change; of ``models`` all or none."""
        return take_snapshot(self._state, models)

    @property
    def target(self) -> Plan:
        """The plan that partitions are brought in line with."""
        return self._state.target

    def outlooks(self, now_ms: float) -> dict[str, ModelOutlook]:
        """How soon each model that is hosted would answer its next request, by deployment key."""
        return self._scheduler.outlooks(now_ms)

    def handle(self, event: Event, now_ms: float) -> list[Command]:
        """Take in one event and return what is to be done, in order."""
        match event:
            case RequestArrived(request=request):
                return self._scheduler.arrive(request, now_ms)
            case WorkFinished():
                return self._finished(event, now_ms)
            case RefusedUpstream(model=model, rows=rows):
                return self._scheduler.count_refused(model, rows, now_ms)
            case BatchWaits():
                return self._scheduler.waits(event, now_ms)
            case TierChanged():
                return self._scheduler.moved(event, now_ms)
            case RequestCancelled(model=model, request_id=request_id):
                return self._scheduler.cancel(model, request_id, now_ms)
            case SequenceEnded(model=model, sequence=sequence):
                sequences.forget(self._state, (model, sequence))
                return []
            case AppEnded(request=request_id):
                self._state.expect_stages(request_id, ())
                return []
            case Woke():
                gpus = [gpu.id for gpu in self._state.fleet.gpus]
                return self._scheduler.expire(now_ms) + self._scheduler.dispatch(gpus, now_ms)
            case TimedOut():
                return failures.timed_out(self._state, now_ms)
            case EpochEnded():
                commands = self._scheduler.expire(now_ms) + self._plans.tick(now_ms)
                commands += self._reconcile(now_ms)
                return commands + self._plans.dismissals()
            case _:
                commands = self._changed(event, now_ms)
                return commands + self._reconcile(now_ms)

    def _reconcile(self, now_ms: float, ended: bool = False) -> list[Command]:
        before = self._state.target
        commands = self._plans.resume(now_ms)
        same = self._state.target is before
        return commands + self._reconciler.reconcile(now_ms, ended and same)

    def _changed(
        self,
        event: ModelsDeployed
        | ModelWithdrawn
        | ProfileMeasured
        | PlanChanged
        | PlanSolved
        | PartitionLost
        | GpuJoined
        | GpuLeft,
        now_ms: float,
    ) -> list[Command]:
        """Take in an event that changes what is wanted, or what there is."""
        match event:
            case ModelsDeployed():
                return self._plans.deploy(event)
            case ModelWithdrawn(model=model):
                return self._plans.withdraw(model)
            case ProfileMeasured(model=model, profile=profile):
                return self._plans.measured(model, profile)
            case PlanChanged():
                return self._plans.ask()
            case PlanSolved():
                return self._plans.planned(event, now_ms)
            case PartitionLost(blamed=blamed, detail=detail):
                crashes = [self._quarantine.count_crash(key, detail, now_ms) for key in blamed]
                self._reconciler.lost(event)
                return [command for commands in crashes for command in commands]
            case GpuJoined(gpu=gpu):
                self._scheduler.joined(gpu)
                return self._plans.joined(event)
            case GpuLeft():
                return self._plans.left(event)

    def _finished(self, finished: WorkFinished, now_ms: float) -> list[Command]:
        work = finished.work
        commands: list[Command] = []
        if isinstance(work, Run):
            if finished.failure is not None:
                commands = self._quarantine.worker_died(work, finished.failure, now_ms)
            commands += self._scheduler.finish(finished, work, now_ms)
            if not self._may_go_on(work):
                return commands + self._scheduler.dispatch((work.gpu,), now_ms)
        elif isinstance(work, CopyInputs):
            return self._scheduler.staged(finished, work, now_ms)
        elif isinstance(work, Fetch | Evict):
            return self._scheduler.fetched(finished, work, now_ms)
        else:
            if finished.failure is not None:
                commands = self._quarantine.worker_died(work, finished.failure, now_ms)
            commands += self._reconciler.finished(finished, work, now_ms)
            if isinstance(work, CreatePartition) and finished.failure is not None:
                return commands  # tried again when the epoch ends, not at once
            if finished.failure is None and self._reconciler.may_wait():
                return commands
        return commands + self._reconcile(now_ms, ended=True)

    def _may_go_on(self, run: Run) -> bool:
        """True if a change of plan may have waited for the end of this batch."""
        live = self._state.partitions.get(run.partition)
        if live is None or live.state is not PartitionState.READY:
            return True
        deployed = self._state.models.get(run.batch.model)
        if deployed is None or deployed.leaving:
            return True
        return run.batch.model not in self._state.turns_of[live.id].by_model
