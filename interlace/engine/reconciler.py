"""From the partitions there are to those the plan wants: create, load, unload, release."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from interlace.core.hardware import Trait
from interlace.core.messages import (
    Command,
    CreatePartition,
    Load,
    PartitionLost,
    PartitionWork,
    ReleasePartition,
    ReportSettled,
    ReportStatus,
    Run,
    Unload,
    WorkFinished,
)
from interlace.engine.eviction_order import EvictionOrder
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_diff import Evictions, next_steps, settled
from interlace.engine.quarantine import ModelQuarantine
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.state import DeployedModel, EngineState
from interlace.engine.turns import update_sustaining_batches
from interlace.perf.buckets import choose_buckets
from interlace.perf.latency import surface
from interlace.perf.memory import comes_and_goes

#: With more steps than this under way (partitions made and released, models loaded and unloaded),
#: not each end is followed by a look at all models. The next look is when this part of the steps
#: has ended since the last one, or when an epoch has.
_MANY: Final = 32
_PART: Final = 0.5
#: How often a model that has never been loaded may fail to be, for each partition.
_ROUNDS: Final = 2


class Reconciler:
    """Brings partitions and their models in line with the wanted plan, step by step.

    Level-triggered: ``reconcile`` compares what there is with what is wanted and begins whatever
    can be begun; the end of each piece of work is an event after which it is called again.
    """

    def __init__(
        self,
        state: EngineState,
        scheduler: RequestScheduler,
        quarantine: ModelQuarantine,
        rates: RateTracker,
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._quarantine = quarantine
        self._rates = rates
        self._under_way = 0  #: steps that were begun and have not ended
        self._under_way_then = 0  #: when all was last looked at
        self._many = False  #: they have been many since there were none

    def may_wait(self) -> bool:
        """True where so much is under way that not each end is worth a look at all."""
        return self._many and self._under_way > (1.0 - _PART) * self._under_way_then

    def finished(self, finished: WorkFinished, work: PartitionWork, now_ms: float) -> list[Command]:
        """Note that a partition was created or released, or a model loaded or unloaded."""
        self._under_way -= 1
        live = self._state.partitions.get(work.partition)
        if live is None:
            return []
        match work:
            case CreatePartition():
                self._created(live, finished)
            case Load(model=model):
                return self._loaded(live, model, finished, now_ms)
            case Unload(model=model):
                live.unload(model)
            case ReleasePartition():
                live.transition_to(PartitionState.GONE)
                del self._state.partitions[live.id]
            case Run():
                raise AssertionError("batches are finished by the request scheduler")
        return []

    def lost(self, lost: PartitionLost) -> None:
        """A partition died: forget it; the plan still wants it, so it is created anew."""
        live = self._state.partitions.pop(lost.partition, None)
        if live is not None:
            live.transition_to(PartitionState.GONE)
            self._state.partitions_lost += 1

    def reconcile(self, now_ms: float, ended: bool = False) -> list[Command]:
        """Begin every step towards the plan that can be taken now, and report what changed.

        Where only work has ``ended``, rates have not moved: what goes by them stays for models
        that are where they were.
        """
        state = self._state
        self._empty_leavers()
        order = self._eviction_order()
        evictions = order.evictions()
        if self._begin_draining(evictions):
            order = self._eviction_order()
            evictions = order.evictions()
        moved = state.update_hosts()
        commands: list[Command] = []
        # Each step is begun before the next is sought: memory that a load takes is no longer free.
        for work in next_steps(state.partitions, state.target, evictions, order.allows):
            self._begin(work, now_ms)
            commands.append(self._sized(work) if isinstance(work, Load) else work)
        self._under_way_then = self._under_way
        self._many = self._under_way > _MANY or (self._many and self._under_way > 0)
        if commands:
            moved |= state.update_hosts()
        update_sustaining_batches(state, self._rates, moved if ended else None)
        for model, reason in self._scheduler.fetching.update(now_ms):
            commands += self._quarantine.start(model, state.models[model], reason, now_ms)
        commands += self._scheduler.staging.fill_all()
        commands += self._report_changes()
        return commands + self._scheduler.dispatch([g.id for g in state.fleet.gpus], now_ms)

    def _sized(self, load: Load) -> Load:
        """The load with batch sizes to capture graphs for, if any, so that padding costs little.

        Swapped weights are not loaded with it.
        """
        deployed = self._state.models.get(load.model)
        if deployed is None:
            return load
        gpu = self._state.fleet.gpu(load.gpu)
        if comes_and_goes(deployed.profile, gpu):
            load = replace(load, cold=True)
        if Trait.GRAPHS not in gpu.traits:
            return load
        share_pct = self._state.partitions[load.partition].share_pct
        curve = surface(deployed.profile, "median_ms").at_share(share_pct)
        return replace(load, batches=choose_buckets(deployed.demand.max_batch, dict(curve)))

    def _eviction_order(self) -> EvictionOrder:
        state = self._state
        profiles = {name: deployed.profile for name, deployed in state.models.items()}
        return EvictionOrder(state.partitions, state.target, state.fleet.gpus, profiles)

    def _begin_draining(self, evictions: Evictions) -> bool:
        """Drain unwanted partitions: once the plan stands, or before if they are in its way.

        True if there were any.
        """
        switched = settled(self._state.partitions, self._state.target)
        wanted = {partition.id for partition in self._state.target.partitions}
        begun = False
        for live in self._state.partitions.values():
            if live.id in wanted or live.state is not PartitionState.READY:
                continue
            if switched or live.id in evictions.partitions:
                live.transition_to(PartitionState.DRAINING)
                begun = True
        return begun

    def _begin(self, work: PartitionWork, now_ms: float) -> None:
        self._under_way += 1
        match work:
            case CreatePartition(partition=name, gpu=gpu, share_pct=share_pct):
                whole = self._state.fleet.gpu(gpu)
                self._state.partitions[name] = LivePartition(
                    name, gpu, share_pct, room=whole.taken(share_pct), ahead_ms=whole.ahead_ms
                )
            case Load(partition=name, model=model):
                self._state.partitions[name].begin_load(model, now_ms)
            case Unload(partition=name, model=model):
                self._state.partitions[name].model_states[model] = ModelState.UNLOADING
            case ReleasePartition(partition=name):
                self._state.partitions[name].transition_to(PartitionState.RELEASING)
            case Run():
                raise AssertionError("plans contain no runs")

    def _created(self, live: LivePartition, finished: WorkFinished) -> None:
        if finished.failure is None:
            live.transition_to(PartitionState.READY)
            live.units = finished.units
            if self._state.fleet.gpu(live.gpu).blocks[0]:
                live.units_mask = sum(1 << unit for unit in finished.units)
        elif not finished.failure.fatal:
            live.transition_to(PartitionState.GONE)
            del self._state.partitions[live.id]

    def _loaded(
        self, live: LivePartition, model: str, finished: WorkFinished, now_ms: float
    ) -> list[Command]:
        live.end_load(model, None if finished.failure else finished.resident_bytes, now_ms)
        deployed = self._state.models.get(model)
        if finished.failure is None:
            if deployed is not None:
                deployed.failed_loads = 0
            return []
        if finished.failure.fatal:
            return []  # the whole partition is lost; the quarantine counts the crash
        self._state.drop_from_target(model, live.id)
        if deployed is None or deployed.hosts or deployed.quarantine_reason is not None:
            return []
        deployed.failed_loads += 1
        # Each new plan has it loaded again where it failed, and one may follow the other.
        most = _ROUNDS * len(self._state.partitions)
        if self._state.wants(model) and deployed.failed_loads <= most:
            return []
        reason = f"it could not be loaded: {finished.failure.detail}"
        return self._quarantine.start(model, deployed, reason, now_ms)

    def _empty_leavers(self) -> None:
        leaving = [n for n, one in self._state.models.items() if one.leaving and not one.waiting]
        if leaving:
            wanted = {slot.model for part in self._state.target.partitions for slot in part.slots}
            for name in leaving:
                if name in wanted:
                    self._state.drop_from_target(name)

    def _report_changes(self) -> list[Command]:
        reports: list[Command] = []
        if self._state.settled != self._state.settled_reported:
            self._state.settled_reported = self._state.settled
            reports.append(ReportSettled(self._state.settled))
        for name, deployed in list(self._state.models.items()):
            if deployed.leaving and not deployed.waiting and not self._held(name):
                self._state.forget(name)
                self._rates.forget(name)
                self._scheduler.fetching.registry.forget(name)
                reports.append(ReportStatus(name, "gone"))
            elif not deployed.status_reported and self._serves(name, deployed):
                deployed.status_reported = True
                reports.append(ReportStatus(name, "ready"))
        return reports

    def _serves(self, model: str, deployed: DeployedModel) -> bool:
        """True where it has a turn, or is a guest and is to have none: another node serves it."""
        if deployed.hosts or not deployed.lenders:
            return bool(deployed.hosts)
        slots = (slot for part in self._state.target.partitions for slot in part.slots)
        return all(slot.guest for slot in slots if slot.model == model)

    def _held(self, model: str) -> bool:
        return any(
            model in live.model_states or any(one.run.batch.model == model for one in live.batches)
            for live in self._state.partitions.values()
        )
