"""The way to the wanted plan: partitions made and given up, models loaded and unloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from interlace.core.hardware import Trait
from interlace.core.messages import (
    Carve,
    Command,
    Finished,
    Load,
    Lost,
    PartitionWork,
    Release,
    Run,
    Tell,
    Unload,
)
from interlace.engine import refusals
from interlace.engine.pacing import pace
from interlace.engine.partitions import Life, Live, Stay
from interlace.engine.rates import Rates
from interlace.engine.reorganise import First, settled, steps
from interlace.engine.room import Room
from interlace.engine.serving import Serving
from interlace.engine.state import State, Tenant
from interlace.perf.buckets import choose_buckets
from interlace.perf.latency import surface

#: How long a model is set aside the first time, and at most. Who was well for as long as that
#: begins anew.
FIRST_PAUSE_MS: Final = 10_000.0
MOST_PAUSE_MS: Final = 600_000.0


class Moving:
    """Reconciles what is with what is wanted, and tells owners what has become true."""

    def __init__(self, state: State, serving: Serving, rates: Rates) -> None:
        self._state = state
        self._serving = serving
        self._rates = rates

    def finished(self, finished: Finished, work: PartitionWork, now_ms: float) -> list[Command]:
        """Enter the end of a carve, load, unload or release."""
        live = self._state.lives.get(work.partition)
        if live is None:
            return []
        commands: list[Command] = []
        match work:
            case Carve():
                self._carved(live, finished)
            case Load(model=model):
                commands = self._loaded(live, model, finished, now_ms)
            case Unload(model=model):
                live.stays.pop(model, None)
                live.resident_bytes.pop(model, None)
            case Release():
                live.become(Life.GONE)
                del self._state.lives[live.id]
            case Run():
                raise AssertionError("runs are finished by the serving half")
        if isinstance(work, Carve) and finished.failure is not None:
            return commands  # tried again at the next epoch, not at once
        return commands + self.settle(now_ms)

    def lost(self, lost: Lost, now_ms: float) -> list[Command]:
        """A partition died: forget it; what is wanted of it is made anew."""
        live = self._state.lives.pop(lost.partition, None)
        if live is not None:
            live.become(Life.GONE)
            self._state.lost_partitions += 1
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
        for work in steps(state.lives, state.target, room.first(), room.allows):
            self._begin(work)
            commands.append(self._sized(work) if isinstance(work, Load) else work)
        state.rehost()
        pace(state, self._rates)
        commands += self._serving.staging.fill_all()
        commands += self._tell_changes()
        return commands + self._serving.dispatch([g.id for g in state.fleet.gpus], now_ms)

    def _sized(self, load: Load) -> Load:
        """With the batch sizes to prepare, where they must be: padding to them costs little."""
        tenant = self._state.tenants.get(load.model)
        if tenant is None or Trait.GRAPHS not in self._state.fleet.gpu(load.gpu).traits:
            return load
        share_pct = self._state.lives[load.partition].share_pct
        curve = surface(tenant.profile, "median_ms").at_share(share_pct)
        return replace(load, batches=choose_buckets(tenant.demand.max_batch, dict(curve)))

    def _room(self) -> Room:
        state = self._state
        profiles = {name: tenant.profile for name, tenant in state.tenants.items()}
        return Room(state.lives, state.target, state.fleet.gpus, profiles)

    def _begin_draining(self, first: First) -> None:
        """Close partitions that are not wanted: after the switch, or before it if they must go."""
        switched = settled(self._state.lives, self._state.target)
        wanted = {partition.id for partition in self._state.target.partitions}
        for live in self._state.lives.values():
            if live.id in wanted or live.life is not Life.READY:
                continue
            if switched or live.id in first.partitions:
                live.become(Life.DRAINING)

    def _begin(self, work: PartitionWork) -> None:
        match work:
            case Carve(partition=name, gpu=gpu, share_pct=share_pct):
                ahead_ms = self._state.fleet.gpu(gpu).ahead_ms
                self._state.lives[name] = Live(name, gpu, share_pct, ahead_ms=ahead_ms)
            case Load(partition=name, model=model):
                self._state.lives[name].stays[model] = Stay.LOADING
            case Unload(partition=name, model=model):
                self._state.lives[name].stays[model] = Stay.UNLOADING
            case Release(partition=name):
                self._state.lives[name].become(Life.RELEASING)
            case Run():
                raise AssertionError("plans contain no runs")

    def _carved(self, live: Live, finished: Finished) -> None:
        if finished.failure is None:
            live.become(Life.READY)
            live.units = finished.units
        elif not finished.failure.fatal:
            live.become(Life.GONE)
            del self._state.lives[live.id]

    def _loaded(self, live: Live, model: str, finished: Finished, now_ms: float) -> list[Command]:
        if finished.failure is None:
            live.stays[model] = Stay.LOADED
            live.resident_bytes[model] = finished.resident_bytes
            return []
        live.stays.pop(model, None)
        if finished.failure.fatal:
            return []  # the partition is lost, and blame is laid there
        self._state.drop_from_target(model, live.id)
        tenant = self._state.tenants.get(model)
        if tenant is None or tenant.hosts or self._state.wants(model):
            return []
        return self.set_aside(
            model, tenant, f"it could not be loaded: {finished.failure.detail}", now_ms
        )

    def set_aside(self, model: str, tenant: Tenant, reason: str, now_ms: float) -> list[Command]:
        """Serve a model no more for a while, for a reason that its callers are told.

        Each time for twice as long as before, unless it had been well for long. One that never
        served is its owner's again.
        """
        tenant.aside = reason
        if tenant.told or tenant.pause_ms:
            well = now_ms - tenant.back_ms >= MOST_PAUSE_MS
            longer_ms = 0.0 if well else min(2.0 * tenant.pause_ms, MOST_PAUSE_MS)
            tenant.pause_ms = max(longer_ms, FIRST_PAUSE_MS)
            tenant.back_ms = now_ms + tenant.pause_ms
            tenant.aside += f"; it is tried again after {tenant.pause_ms / 1000.0:g} s"
        tenant.told = True
        self._state.drop_from_target(model)
        error = refusals.set_aside(tenant, now_ms)
        return [*self._serving.abandon(tenant, error), Tell(model, "failed", tenant.aside)]

    def take_back(self, now_ms: float) -> bool:
        """Try again what was set aside for long enough; true if there is any."""
        served = [one for one in self._state.tenants.values() if not one.leaving]
        due = [one for one in served if one.aside is not None and now_ms >= one.back_ms]
        for tenant in due:
            tenant.aside, tenant.told = None, False
            tenant.crashes_ms.clear()
        return bool(due)

    def _empty_leavers(self) -> None:
        for name, tenant in self._state.tenants.items():
            if tenant.leaving and not tenant.waiting and self._state.wants(name):
                self._state.drop_from_target(name)

    def _tell_changes(self) -> list[Command]:
        tells: list[Command] = []
        for name, tenant in list(self._state.tenants.items()):
            if tenant.leaving and not tenant.waiting and not self._held(name):
                self._state.forget(name)
                self._rates.forget(name)
                tells.append(Tell(name, "gone"))
            elif tenant.hosts and not tenant.told:
                tenant.told = True
                tells.append(Tell(name, "ready"))
        return tells

    def _held(self, model: str) -> bool:
        return any(
            model in live.stays or any(one.run.batch.model == model for one in live.given)
            for live in self._state.lives.values()
        )
