"""The way to the wanted plan: partitions made and given up, models loaded and unloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from interlace.core.hardware import Trait
from interlace.core.messages import (
    Command,
    CreatePartition,
    Load,
    PartitionLost,
    PartitionWork,
    ReleasePartition,
    ReportStatus,
    Run,
    Unload,
    WorkFinished,
)
from interlace.engine import refusals
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.eviction_order import EvictionOrder
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_diff import Evictions, next_steps, settled
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.round_times import update_round_times
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.buckets import choose_buckets
from interlace.perf.latency import surface

#: How long a model is set aside the first time, and at most. Who was well for as long as that
#: begins anew.
FIRST_QUARANTINE_MS: Final = 10_000.0
LONGEST_QUARANTINE_MS: Final = 600_000.0


class Reconciler:
    """Reconciles what is with what is wanted, and tells owners what has become true."""

    def __init__(self, state: EngineState, serving: RequestScheduler, rates: ArrivalRates) -> None:
        self._state = state
        self._serving = serving
        self._rates = rates

    def finished(self, finished: WorkFinished, work: PartitionWork, now_ms: float) -> list[Command]:
        """Enter the end of a carve, load, unload or release."""
        live = self._state.lives.get(work.partition)
        if live is None:
            return []
        commands: list[Command] = []
        match work:
            case CreatePartition():
                self._carved(live, finished)
            case Load(model=model):
                commands = self._loaded(live, model, finished, now_ms)
            case Unload(model=model):
                live.model_states.pop(model, None)
                live.resident_bytes.pop(model, None)
            case ReleasePartition():
                live.become(PartitionState.GONE)
                del self._state.lives[live.id]
            case Run():
                raise AssertionError("runs are finished by the serving half")
        if isinstance(work, CreatePartition) and finished.failure is not None:
            return commands  # tried again at the next epoch, not at once
        return commands + self.settle(now_ms)

    def lost(self, lost: PartitionLost, now_ms: float) -> list[Command]:
        """A partition died: forget it; what is wanted of it is made anew."""
        live = self._state.lives.pop(lost.partition, None)
        if live is not None:
            live.become(PartitionState.GONE)
            self._state.partitions_lost += 1
        return self.settle(now_ms)

    def settle(self, now_ms: float) -> list[Command]:
        """Begin what can be begun towards the target, and tell owners what has become true."""
        state = self._state
        self._empty_leavers()
        self._begin_draining(self._room().first())
        state.rehost()
        commands: list[Command] = []
        room = self._room()
        # Begun one by one while they are looked for: what one load takes, the next does not have.
        for work in next_steps(state.lives, state.target, room.first(), room.allows):
            self._begin(work)
            commands.append(self._sized(work) if isinstance(work, Load) else work)
        state.rehost()
        update_round_times(state, self._rates)
        commands += self._serving.staging.fill_all()
        commands += self._tell_changes()
        return commands + self._serving.dispatch([g.id for g in state.fleet.gpus], now_ms)

    def _sized(self, load: Load) -> Load:
        """With the batch sizes to prepare, where they must be: padding to them costs little."""
        deployed = self._state.models.get(load.model)
        if deployed is None or Trait.GRAPHS not in self._state.fleet.gpu(load.gpu).traits:
            return load
        share_pct = self._state.lives[load.partition].share_pct
        curve = surface(deployed.profile, "median_ms").at_share(share_pct)
        return replace(load, batches=choose_buckets(deployed.demand.max_batch, dict(curve)))

    def _room(self) -> EvictionOrder:
        state = self._state
        profiles = {name: deployed.profile for name, deployed in state.models.items()}
        return EvictionOrder(state.lives, state.target, state.fleet.gpus, profiles)

    def _begin_draining(self, first: Evictions) -> None:
        """Close partitions that are not wanted: after the switch, or before it if they must go."""
        switched = settled(self._state.lives, self._state.target)
        wanted = {partition.id for partition in self._state.target.partitions}
        for live in self._state.lives.values():
            if live.id in wanted or live.life is not PartitionState.READY:
                continue
            if switched or live.id in first.partitions:
                live.become(PartitionState.DRAINING)

    def _begin(self, work: PartitionWork) -> None:
        match work:
            case CreatePartition(partition=name, gpu=gpu, share_pct=share_pct):
                ahead_ms = self._state.fleet.gpu(gpu).ahead_ms
                self._state.lives[name] = LivePartition(name, gpu, share_pct, ahead_ms=ahead_ms)
            case Load(partition=name, model=model):
                self._state.lives[name].model_states[model] = ModelState.LOADING
            case Unload(partition=name, model=model):
                self._state.lives[name].model_states[model] = ModelState.UNLOADING
            case ReleasePartition(partition=name):
                self._state.lives[name].become(PartitionState.RELEASING)
            case Run():
                raise AssertionError("plans contain no runs")

    def _carved(self, live: LivePartition, finished: WorkFinished) -> None:
        if finished.failure is None:
            live.become(PartitionState.READY)
            live.units = finished.units
        elif not finished.failure.fatal:
            live.become(PartitionState.GONE)
            del self._state.lives[live.id]

    def _loaded(
        self, live: LivePartition, model: str, finished: WorkFinished, now_ms: float
    ) -> list[Command]:
        if finished.failure is None:
            live.model_states[model] = ModelState.LOADED
            live.resident_bytes[model] = finished.resident_bytes
            return []
        live.model_states.pop(model, None)
        if finished.failure.fatal:
            return []  # the partition is lost, and blame is laid there
        self._state.drop_from_target(model, live.id)
        deployed = self._state.models.get(model)
        if deployed is None or deployed.hosts or self._state.wants(model):
            return []
        return self.set_aside(
            model, deployed, f"it could not be loaded: {finished.failure.detail}", now_ms
        )

    def set_aside(
        self, model: str, deployed: DeployedModel, reason: str, now_ms: float
    ) -> list[Command]:
        """Serve a model no more for a while, for a reason that its callers are told.

        Each time for twice as long as before, unless it had been well for long. One that never
        served is its owner's again.
        """
        deployed.aside = reason
        if deployed.told or deployed.quarantine_ms:
            well = now_ms - deployed.retry_at_ms >= LONGEST_QUARANTINE_MS
            longer_ms = 0.0 if well else min(2.0 * deployed.quarantine_ms, LONGEST_QUARANTINE_MS)
            deployed.quarantine_ms = max(longer_ms, FIRST_QUARANTINE_MS)
            deployed.retry_at_ms = now_ms + deployed.quarantine_ms
            deployed.aside += f"; it is tried again after {deployed.quarantine_ms / 1000.0:g} s"
        deployed.told = True
        self._state.drop_from_target(model)
        error = refusals.set_aside(deployed, now_ms)
        return [
            *self._serving.abandon(deployed, error),
            ReportStatus(model, "failed", deployed.aside),
        ]

    def take_back(self, now_ms: float) -> bool:
        """Try again what was set aside for long enough; true if there is any."""
        served = [one for one in self._state.models.values() if not one.leaving]
        due = [one for one in served if one.aside is not None and now_ms >= one.retry_at_ms]
        for deployed in due:
            deployed.aside, deployed.told = None, False
            deployed.crashes_ms.clear()
        return bool(due)

    def _empty_leavers(self) -> None:
        for name, deployed in self._state.models.items():
            if deployed.leaving and not deployed.waiting and self._state.wants(name):
                self._state.drop_from_target(name)

    def _tell_changes(self) -> list[Command]:
        tells: list[Command] = []
        for name, deployed in list(self._state.models.items()):
            if deployed.leaving and not deployed.waiting and not self._held(name):
                self._state.forget(name)
                self._rates.forget(name)
                tells.append(ReportStatus(name, "gone"))
            elif deployed.hosts and not deployed.told:
                deployed.told = True
                tells.append(ReportStatus(name, "ready"))
        return tells

    def _held(self, model: str) -> bool:
        return any(
            model in live.model_states or any(one.run.batch.model == model for one in live.given)
            for live in self._state.lives.values()
        )
