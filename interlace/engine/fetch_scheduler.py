"""Which weights are loaded and evicted, and when: loads with deadlines on shared links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.loading import LoadPlan
from interlace.core.messages import (
    CancelFetch,
    Command,
    Evict,
    Fetch,
    Run,
    TierChanged,
    WakeAt,
    WorkFinished,
)
from interlace.core.request import Request
from interlace.engine.load_outlook import LinkBeliefs, LoadOption, LoadOutlook
from interlace.engine.residency import FetchInFlight, GpuWeights, ModelWeights
from interlace.engine.state import DeployedModel, EngineState
from interlace.engine.weights_registry import WeightsRegistry
from interlace.policy.base import System
from interlace.policy.cold_policy import WaitingLoad


class WeightEvictor:
    """Evicts what a policy chooses, except weights that must stay."""

    def __init__(self, state: EngineState, system: System) -> None:
        self._state = state
        self._system = system

    def make(
        self, place: GpuWeights, entry: ModelWeights, need_bytes: int, force: bool, now_ms: float
    ) -> list[Command]:
        """Evict enough for a load, or nothing; with ``force`` also weights that requests wait for.

        A model that is forced out while it runs is closed to dispatchers until its batch ends.
        """
        leaving = self._leaving(place, entry, need_bytes, now_ms)
        if not leaving and force:
            place.forced = True
            leaving = self._leaving(place, entry, need_bytes, now_ms)
            place.forced = False
        evicts: list[Command] = []
        for one, layers in leaving.items():
            left = place.models[one]
            if left.running:
                left.closed, left.open, place.closing = True, False, True
            else:
                evicts.append(place.release(left, frozenset(layers)))
                self._state.cold_waiting[one] = None
        return evicts

    def _leaving(
        self, place: GpuWeights, entry: ModelWeights, need_bytes: int, now_ms: float
    ) -> dict[str, list[int]]:
        holdings = [one for one in place.holding.values() if one is not entry]
        leaving: dict[str, list[int]] = {}
        for model, layers in self._system.cold.eviction(need_bytes, holdings, now_ms):
            one = place.models[model]
            if need_bytes > 0 and one.may_leave:
                leaving.setdefault(model, []).extend(layers)
                need_bytes -= one.curve.nbytes(layers)
        return leaving if need_bytes <= 0 else {}


#: Fetches on a link at a time. The second is sent shortly before the first is predicted to end: the
#: link is never idle, and a more urgent load can still go first.
AT_ONCE: Final = 2
_AHEAD_MS: Final = 1.0
#: Warm models with requests may pass a cold one for this part of the slack of its load.
_PART_OF_SLACK: Final = 0.5
#: After this many failures in a row the requests that wait for a fetch are answered.
_TRIES: Final = 2
#: The least time between searches for prefetches while there are none.
_IDLE_MS: Final = 100.0


class FetchScheduler:
    """Decides what is fetched and evicted, and which queues dispatchers see.

    Level-triggered, as plans are: ``step`` looks at waiting requests and resident weights, and
    begins every fetch and eviction that it can.

    Law: resident weights and fetches together never exceed the budget. Weights that run, are
    fetched or are pinned are not evicted. Nor are weights that requests wait for, unless a cold
    model has been passed over for half of the time that it had. At most two fetches are on a link.
    """

    def __init__(self, state: EngineState, system: System) -> None:
        self._state = state
        self._system = system
        self._links = LinkBeliefs()
        self._outlook = LoadOutlook(state, self._links)
        self._room = WeightEvictor(state, system)
        self.registry = WeightsRegistry(state, system)
        self._look_ms: dict[str, float] = {}  #: when to look for prefetches

    def update(self, now_ms: float) -> list[tuple[str, str]]:
        """Take in changed partitions or models; see ``WeightsRegistry.update``."""
        self._look_ms.clear()
        return self.registry.update(now_ms)

    def arrived(self, deployed: DeployedModel, request: Request, now_ms: float) -> None:
        """Predict, for admission, when the weights of a swapped model are loaded."""
        self.registry.arrived(deployed, now_ms)
        deployed.ready_ms = self._outlook.ready_ms(deployed, request.deadline_ms, now_ms)

    def refused(self, deployed: DeployedModel, now_ms: float) -> list[Command]:
        """Load a model whose request was refused because it is cold, before the caller retries.

        Loads for accepted requests go first.
        """
        if not any(entry.warm or entry.wanted for entry in deployed.weights.values()):
            gpu, entry = min(
                deployed.weights.items(),
                key=lambda pair: self._links.free_ms(self._state.weights_on[pair[0]].links[0]),
            )
            entry.wanted = True
            self._state.weights_on[gpu].wanted[entry.model] = entry
            self._look_ms.pop(gpu, None)
        return self.step(now_ms)

    def earliest_ms(self, deployed: DeployedModel, now_ms: float) -> float:
        """Return the earliest time at which its weights can be loaded."""
        return self._outlook.ready_ms(deployed, -inf, now_ms)

    def runs(self, deployed: DeployedModel, gpu: str, batch: int, now_ms: float) -> None:
        """Note a batch that is sent to an accelerator: its weights stay until it ends."""
        entry = deployed.weights.get(gpu)
        if entry is not None:
            entry.running += 1
            entry.last_start_ms = now_ms
            if not entry.warm:
                entry.cold_batches.add(batch)

    def ran(self, deployed: DeployedModel, run: Run) -> bool:
        """Note the end of a batch; true if it was sent before its weights were loaded."""
        entry = deployed.weights.get(run.gpu)
        if entry is None:
            return False
        entry.running -= 1
        cold = run.batch.id in entry.cold_batches
        entry.cold_batches.discard(run.batch.id)
        return cold

    # ------------------------------------------------------------------------ what was asked for

    def finished(
        self, finished: WorkFinished, work: Fetch | Evict, now_ms: float
    ) -> ServeError | None:
        """Note the end of a fetch or eviction; return an error for the requests that waited."""
        place = self._state.weights_on.get(work.gpu)
        if place is None:
            return None
        if isinstance(work, Evict):
            place.evicting.pop(work, None)
            return None
        fetch = place.fetched(work)
        if fetch is None:
            return None
        self._links.ended(fetch, place.links, now_ms)
        entry = place.models.get(work.model)
        if entry is None or entry.fetch is not fetch:
            return None  # unloaded meanwhile
        entry.fetch = None
        place.missing.changed(entry)
        if finished.failure is None:
            self._came(place, entry, fetch, now_ms)
            return None
        entry.open = entry.warm and not entry.closed
        if fetch.cancelled or finished.failure.innocent:
            return None
        self._look_ms[place.gpu.id] = now_ms + _IDLE_MS
        entry.failures += 1
        if entry.failures < _TRIES:
            return None
        entry.failures = 0
        detail = f"its weights could not be brought: {finished.failure.detail}"
        return ServeError(Reason.BACKEND, detail)

    def _came(
        self, place: GpuWeights, entry: ModelWeights, fetch: FetchInFlight, now_ms: float
    ) -> None:
        plan = fetch.work.plan
        place.hold(entry, frozenset(plan.brought))
        entry.failures, entry.on_disk = 0, False
        entry.warm = entry.warm or fetch.whole or not entry.curve.copied(entry.there)
        entry.open = entry.warm and not entry.closed
        entry.wanted = entry.wanted and not entry.warm
        if fetch.demanded:
            entry.cold_starts += 1
            entry.cold_ms += now_ms - fetch.began_ms
        if entry.warm:
            self._state.models[entry.model].estimator.read_ms = entry.read_ms

    def moved(self, told: TierChanged) -> None:
        """Take in that a host evicted a model from memory, or has it again.

        It is promised as the disk reads, be it by a fetch or, where none brings anything, by a run.
        Batches that were sent are not taken back, and whatever is held stays.
        """
        place = self._state.weights_on.get(told.gpu)
        if place is None:
            return
        entry = place.models.get(told.model)
        if entry is None:  # its load has ended, and that is still to be looked at
            (place.told_on_disk.add if told.on_disk else place.told_on_disk.discard)(told.model)
            return
        entry.on_disk = told.on_disk
        host = self._outlook.host
        if entry.warm and host.read(entry, host.plan(entry)).read_ms:
            entry.warm = entry.open = False
            if entry.queue.rows:
                self._state.cold_waiting[told.model] = None

    # -------------------------------------------------------------------------------- what is next

    def step(self, now_ms: float) -> list[Command]:
        """Begin all loads and evictions that can begin, before dispatchers are asked."""
        places = self._state.weights_on
        if not places:
            return []
        wake_ms = inf
        for place in places.values():
            place.now_ms, place.forced = now_ms, False
            for entry in place.holding.values() if place.closing else ():
                entry.closed, entry.open = False, entry.warm
            place.closing = False
        commands = self._cancels()
        loads = self._outlook.loads(now_ms)
        for place in places.values():
            mine = [one for one in loads if one.place is place]
            if mine:
                begun, next_ms = self._begin_loads(place, mine, now_ms)
                commands += begun
                wake_ms = min(wake_ms, next_ms)
            else:
                commands += self._prefetch(place, now_ms)
        for place in places.values():
            for fetch in place.fetches:
                wake_ms = min(wake_ms, self._open(place, fetch, now_ms))
        return [*commands, WakeAt(wake_ms)] if wake_ms < inf else commands

    def _open(self, place: GpuWeights, fetch: FetchInFlight, now_ms: float) -> float:
        """Open a queue to dispatchers once waiting gains nothing; return when that is, if later."""
        entry = place.models.get(fetch.work.model)
        if entry is None or entry.fetch is not fetch or not fetch.whole:
            return inf
        if fetch.cancelled or entry.open:
            return inf
        if now_ms < fetch.opens_ms:
            return fetch.opens_ms
        entry.open = not entry.closed
        return inf

    def _cancels(self) -> list[Command]:
        """Cancel fetches without waiters, and prefetches competing with demand loads."""
        commands: list[Command] = []
        for place in self._state.weights_on.values():
            for fetch in place.fetches:
                model = fetch.work.model
                entry = place.models.get(model)
                if fetch.cancelled or (entry is not None and entry.fetch is not fetch):
                    continue
                if entry is not None and (entry.queue.rows or entry.running):
                    continue
                if fetch.demanded or entry is None:
                    fetch.cancelled = True
                    commands.append(CancelFetch(place.gpu.id, model))
        return commands

    def _begin_loads(
        self, place: GpuWeights, loads: list[LoadOption], now_ms: float
    ) -> tuple[list[Command], float]:
        """Begin demand loads, most urgent first; return also when to look again."""
        commands: list[Command] = []
        wake_ms = inf
        for fetch in place.fetches:  # what nobody asked for gives way
            if not (fetch.demanded or fetch.cancelled) and fetch.ends_ms - now_ms > _AHEAD_MS:
                fetch.cancelled = True
                commands.append(CancelFetch(place.gpu.id, fetch.work.model))
        while loads:
            begin_ms = self._begins_ms(place, now_ms)
            if begin_ms > now_ms:
                return commands, min(wake_ms, begin_ms)
            read_ms = self._outlook.host.free_ms(now_ms) - _AHEAD_MS
            ready = [one for one in loads if not one.from_disk or read_ms <= now_ms]
            choice = self._system.cold.order([one.waiting for one in ready], now_ms)
            load = next((one for one in ready if one.waiting.model == choice.model), None)
            if load is None:
                disk_ms = read_ms if len(ready) < len(loads) else inf
                return commands, min(wake_ms, choice.wake_ms or inf, disk_ms)
            loads.remove(load)
            need_bytes = load.entry.curve.nbytes(load.plan.brought) - place.free_bytes
            if need_bytes <= 0:
                commands.append(self._fetch(load.entry, place, load.plan, True, now_ms))
                continue
            if place.evicting:
                return commands, wake_ms  # the end of that is an event
            overdue_ms = _overdue_ms(load.waiting)
            gone = self._room.make(place, load.entry, need_bytes, now_ms >= overdue_ms, now_ms)
            commands += gone
            if gone or place.closing:
                return commands, wake_ms  # nobody passes it any more
            kept_ms = (one.kept_until_ms for one in place.holding.values())
            wake_ms = min([wake_ms, *(at for at in (overdue_ms, *kept_ms) if at > now_ms)])
        return commands, wake_ms

    def _begins_ms(self, place: GpuWeights, now_ms: float) -> float:
        """Return when the next fetch may be sent; infinite until one ends."""
        for link in place.links:
            if self._on(link) >= AT_ONCE:
                return inf
        own = place.links[0]
        return max(now_ms, self._links.free_ms(own) - _AHEAD_MS) if self._on(own) else now_ms

    def _on(self, link: str) -> int:
        """Return the number of fetches on a link, of all accelerators."""
        return sum(
            1
            for place in self._state.weights_on.values()
            if link in place.links
            for fetch in place.fetches
            if place.links.index(link) in fetch.uses
        )

    def _fetch(
        self, entry: ModelWeights, place: GpuWeights, plan: LoadPlan, demanded: bool, now_ms: float
    ) -> Command:
        live = self._outlook.partition(self._state.models[entry.model], place.gpu.id)
        assert live is not None, f"{entry.model} has no partition on {place.gpu.id}"
        work = Fetch(place.gpu.id, live.id, entry.model, plan)
        whole = plan == self._outlook.host.plan(entry)
        fetch = FetchInFlight(work, entry.curve.nbytes(plan.brought), demanded, whole, now_ms)
        self._links.begin(fetch, entry, place.links)
        self._outlook.host.begin(fetch, entry, now_ms)
        place.fetches.append(fetch)
        entry.fetch = fetch
        return work

    # --------------------------------------------------------------------------------- memory

    def _prefetch(self, place: GpuWeights, now_ms: float) -> list[Command]:
        """Prefetch while the link is idle: pinned models, then what is worth most."""
        if place.fetches or place.evicting or now_ms < self._look_ms.get(place.gpu.id, -inf):
            return []
        if self._on(place.links[0]):
            return []
        for entry, plan in self._wanted(place, now_ms):
            deployed = self._state.models[entry.model]
            if self._outlook.partition(deployed, place.gpu.id) is None:
                continue
            if not (plan.brought or self._outlook.host.read(entry, plan).read_ms):
                continue
            need_bytes = entry.curve.nbytes(plan.brought) - place.free_bytes
            if need_bytes <= 0:
                return [self._fetch(entry, place, plan, False, now_ms)]
            if evicts := self._room.make(place, entry, need_bytes, False, now_ms):
                return evicts
        self._look_ms[place.gpu.id] = now_ms + _IDLE_MS
        return []

    def _wanted(self, place: GpuWeights, now_ms: float) -> Iterator[tuple[ModelWeights, LoadPlan]]:
        for entry in list(place.wanted.values()):
            if not (entry.pinned or entry.wanted):
                del place.wanted[entry.model]
            elif not entry.warm and not entry.fetching:
                yield entry, self._outlook.host.plan(entry)
        candidates = dict(place.holding)
        hottest = place.missing.hottest()
        if hottest is not None:
            candidates[hottest] = place.models[hottest]
        every: Sequence[ModelWeights] = list(candidates.values())
        found = self._system.cold.prefetch(max(0, place.free_bytes), every, now_ms)
        if found is not None:
            yield place.models[found[0]], found[1]


def _overdue_ms(load: WaitingLoad) -> float:
    """Return when a load has waited for its part of its slack."""
    latest_ms = load.deadline_ms - load.end_ms
    return load.first_arrival_ms + _PART_OF_SLACK * max(0.0, latest_ms - load.first_arrival_ms)
