"""Predictions about loads: links, disk, and where a cold model is warm first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from interlace.core.loading import DISK, LoadPlan, WeightPath
from interlace.engine.live_partition import LivePartition
from interlace.engine.residency import FetchInFlight, GpuWeights, ModelWeights
from interlace.engine.state import DeployedModel, EngineState
from interlace.perf.cold_start import HostMemory, read_ms
from interlace.policy.cold_policy import WaitingLoad


class LinkBeliefs:
    """When each link is predicted to be free, and its pace relative to the profile."""

    #: Weight of one more fetch in the pace, and bounds of the pace.
    _WEIGHT: Final = 0.2
    _LEAST: Final = 0.25
    _MOST: Final = 10.0

    def __init__(self) -> None:
        self._free_ms: dict[str, float] = {}
        self._pace: dict[str, float] = {}

    def free_ms(self, link: str) -> float:
        return self._free_ms.get(link, -inf)

    def pace(self, link: str) -> float:
        """Return the factor on measured times."""
        return self._pace.get(link, 1.0)

    def begin(self, fetch: FetchInFlight, entry: ModelWeights, links: tuple[str, ...]) -> None:
        """Queue a fetch on its links."""
        plan, began_ms = fetch.work.plan, fetch.began_ms
        own, ready_ms = self.pace(links[0]), began_ms
        for number, link in enumerate(links):
            copy_ms = sum(
                entry.curve.layers[index].copy_ms
                for index in plan.brought
                if plan.steps[index].link == number
            )
            if copy_ms:
                waits_ms = max(began_ms, self.free_ms(link))
                ready_ms = max(ready_ms, waits_ms)
                self._free_ms[link] = waits_ms + self.pace(link) * copy_ms
                fetch.ends_ms = max(fetch.ends_ms, self._free_ms[link])
        if plan.overlapped:
            stalls_ms = max(0.0, plan.end_ms - entry.run_ms(plan))
            fetch.opens_ms = ready_ms + own * stalls_ms

    def reads(self, fetch: FetchInFlight, read_until_ms: float, opens_ms: float) -> None:
        """Note that a fetch reads the disk until then; its first batch may begin earlier."""
        self._free_ms[DISK] = read_until_ms
        fetch.from_disk = True
        fetch.ends_ms = max(fetch.ends_ms, read_until_ms)
        fetch.opens_ms = max(fetch.opens_ms, opens_ms)

    def ended(self, fetch: FetchInFlight, links: tuple[str, ...], now_ms: float) -> None:
        """Free the links of a fetch that ended, unless another uses them; learn their pace."""
        for link in (*links, DISK) if fetch.from_disk else links:
            if self.free_ms(link) <= fetch.ends_ms:
                self._free_ms[link] = now_ms
        expected_ms = fetch.ends_ms - fetch.began_ms
        if fetch.cancelled or fetch.from_disk or expected_ms <= 0.0:
            return
        pace = self.pace(links[0])
        seen = pace * (now_ms - fetch.began_ms) / expected_ms
        pace += self._WEIGHT * (seen - pace)
        self._pace[links[0]] = min(max(pace, self._LEAST), self._MOST)


class DiskRead(NamedTuple):
    """The disk time of a plan, and how long the first execution waits for it."""

    read_ms: float = 0.0
    stall_ms: float = 0.0


_NONE = DiskRead()


class DiskTierState:
    """Which weights are only on the host's disk, and when the disk is free.

    Reports of devices (``TierChanged``) count first. Where accelerators have a ``host`` tier, it
    follows the models that fetches bring into the host's memory: devices keep the same ones. The
    disk is assumed to have its stated rate, and to read one model at a time.
    """

    def __init__(self, state: EngineState, links: LinkBeliefs) -> None:
        self._state = state
        self._links = links
        self._memory: HostMemory | None = None

    def plan(self, entry: ModelWeights) -> LoadPlan:
        """Return the plan that loads the rest of a model from its tier."""
        return entry.plan(self.on_disk(entry))

    def on_disk(self, entry: ModelWeights) -> bool:
        """True if the host has a model only on its disk."""
        memory = self._known()
        if not entry.curve.on_disk:
            return False
        return entry.on_disk or (memory is not None and not memory.holds(entry.model))

    def read(self, entry: ModelWeights, plan: LoadPlan) -> DiskRead:
        """Return the disk read of a plan."""
        if not self.on_disk(entry):
            return _NONE
        layers, curve = entry.curve.on_disk, entry.curve
        left = [
            layer
            for layer, step in zip(layers, plan.steps, strict=True)
            if step.via is WeightPath.HOST
        ]
        total_ms = sum(layers[index].copy_ms for index in plan.brought) + sum(map(read_ms, left))
        # A copy over a link of its own follows the read.
        last_ms = max((curve.layers[index].copy_ms for index in plan.brought), default=0.0)
        return DiskRead(total_ms, max(0.0, plan.end_ms - entry.run_ms(plan)) + last_ms)

    def free_ms(self, now_ms: float) -> float:
        """Return when the disk is predicted to be free."""
        return max(now_ms, self._links.free_ms(DISK))

    def begin(self, fetch: FetchInFlight, entry: ModelWeights, now_ms: float) -> None:
        """Note a fetch that was sent: it ends after its disk read."""
        read, memory = self.read(entry, fetch.work.plan), self._known()
        if memory is not None:
            memory.use(entry.model, entry.curve.nbytes(range(len(entry.curve.layers))))
        if read.read_ms:
            free_ms = self.free_ms(now_ms)
            self._links.reads(fetch, free_ms + read.read_ms, free_ms + read.stall_ms)

    def _known(self) -> HostMemory | None:
        if self._memory is None:
            tiers = [gpu.host for gpu in self._state.fleet.gpus if gpu.host is not None]
            self._memory = HostMemory(tiers[0]) if tiers else None
        return self._memory


@dataclass(frozen=True, slots=True)
class LoadOption:
    """A cold model, the accelerator where it would be warm first, and the plan of the load."""

    waiting: WaitingLoad
    entry: ModelWeights
    place: GpuWeights
    plan: LoadPlan
    from_disk: bool


class LoadOutlook:
    """Predicts loads from the believed state of links and disk."""

    def __init__(self, state: EngineState, links: LinkBeliefs) -> None:
        self._state = state
        self._links = links
        self.host = DiskTierState(state, links)

    def ready_ms(self, deployed: DeployedModel, deadline_ms: float, now_ms: float) -> float:
        """Return when enough of its weights are predicted to be loaded for a batch to begin.

        Loads of more urgent requests than that deadline's go first.
        """
        found_ms = inf
        cold: list[tuple[str, ModelWeights]] = []
        for gpu, entry in deployed.weights.items():
            fetch = entry.fetch
            if entry.warm and not entry.closed:
                return -inf
            if fetch is not None and fetch.whole and not fetch.cancelled:
                found_ms = min(found_ms, fetch.opens_ms, fetch.ends_ms)
            else:
                cold.append((self._state.weights_on[gpu].links[0], entry))
        if not cold:
            return found_ms
        free_ms, disk_ms = self._behind_more_urgent(deployed, deadline_ms, now_ms)
        for link, entry in cold:
            found_ms = min(found_ms, self._arrives_ms(entry, link, free_ms[link], disk_ms))
        return found_ms

    def _behind_more_urgent(
        self, deployed: DeployedModel, deadline_ms: float, now_ms: float
    ) -> tuple[dict[str, float], float]:
        """Return when links and disk are free after more urgent loads, each where it ends first."""
        free_ms: dict[str, float] = {}
        for place in self._state.weights_on.values():
            link = place.links[0]
            free_ms[link] = max(free_ms.get(link, now_ms), self._free_ms(place, now_ms))
        disk_ms = self.host.free_ms(now_ms)
        waiting = self._state.cold_waiting if deadline_ms > now_ms else ()
        others = [one for model in waiting if (one := self._state.models.get(model)) is not None]
        for other in sorted(others, key=lambda one: one.queue.next_deadline_ms):
            if other.queue.next_deadline_ms >= deadline_ms:
                break
            entries = other.weights
            on_its_way = any(one.warm or one.fetch is not None for one in entries.values())
            if other is deployed or not other.queue.rows or on_its_way or not entries:
                continue
            ends_ms, link, gpu = min(
                (free_ms[link] + self._links.pace(link) * entry.copy_ms(plan), link, gpu)
                for gpu, entry in entries.items()
                for link, plan in ((self._state.weights_on[gpu].links[0], self.host.plan(entry)),)
            )
            free_ms[link] = ends_ms
            disk_ms += self.host.read(entries[gpu], self.host.plan(entries[gpu])).read_ms
        return free_ms, disk_ms

    def _arrives_ms(self, entry: ModelWeights, link: str, free_ms: float, disk_ms: float) -> float:
        """Return when a batch may begin if the link and the disk are free at these times."""
        plan, pace = self.host.plan(entry), self._links.pace(link)
        read = self.host.read(entry, plan)
        if read.read_ms:
            return max(free_ms, disk_ms) + read.stall_ms
        if not plan.overlapped:
            return free_ms + pace * entry.copy_ms(plan)
        return free_ms + pace * max(0.0, plan.end_ms - entry.run_ms(plan))

    def _free_ms(self, place: GpuWeights, now_ms: float) -> float:
        """Return when the link is free for a demand load: prefetches give way after a layer."""
        link = place.links[0]
        free_ms = max(now_ms, self._links.free_ms(link))
        if not place.fetches or any(fetch.demanded for fetch in place.fetches):
            return free_ms
        longest_ms = 0.0
        for fetch in place.fetches:
            if (entry := place.models.get(fetch.work.model)) is not None:
                brought = [entry.curve.layers[index] for index in fetch.work.plan.brought]
                longest_ms = max([longest_ms, *(layer.copy_ms for layer in brought)])
        return min(free_ms, now_ms + self._links.pace(link) * longest_ms)

    def loads(self, now_ms: float) -> list[LoadOption]:
        """Return cold models with requests, each where its first answer would end first."""
        state = self._state
        found: list[LoadOption] = []
        for model in list(state.cold_waiting):
            deployed = state.models.get(model)
            if deployed is None or not deployed.queue.rows or not deployed.weights:
                del state.cold_waiting[model]
                continue
            entries = deployed.weights
            if any(one.warm and not one.closed for one in entries.values()):
                del state.cold_waiting[model]
                continue
            if any(one.fetch is not None for one in entries.values()):
                continue
            options = [
                self._load(deployed, entry, state.weights_on[gpu], now_ms)
                for gpu, entry in entries.items()
                if not (entry.warm or _is_leaving(model, state.weights_on[gpu]))
                and self.partition(deployed, gpu) is not None
            ]
            if options:
                found.append(min(options, key=_cost))
        return found

    def _load(
        self, deployed: DeployedModel, entry: ModelWeights, place: GpuWeights, now_ms: float
    ) -> LoadOption:
        plan = self.host.plan(entry)
        owed_ms = self._free_ms(place, now_ms) - now_ms
        pace = self._links.pace(place.links[0])
        run_ms = entry.run_ms(plan)
        link_ms = pace * entry.copy_ms(plan)
        read = self.host.read(entry, plan)
        stalls_ms = owed_ms + pace * (plan.end_ms - run_ms)
        if read.read_ms:
            stalls_ms = max(owed_ms, self.host.free_ms(now_ms) - now_ms) + read.stall_ms
        waiting = WaitingLoad(
            entry.model,
            deployed.queue.first_arrival_ms,
            deployed.queue.next_deadline_ms,
            link_ms,
            stalls_ms + run_ms,
            entry.rate_rps,
            # What left for another load is free for a moment: that is no room yet.
            2 * entry.curve.nbytes(plan.brought) > place.free_bytes,
        )
        return LoadOption(waiting, entry, place, plan, read.read_ms > 0.0)

    def partition(self, deployed: DeployedModel, gpu: str) -> LivePartition | None:
        """Return the partition for a fetch: one that hosts the model, idle if possible."""
        here = [one for one in (*deployed.hosts, *deployed.lenders) if one.gpu == gpu]
        return min(here, key=lambda one: one.batch is not None, default=None)


def _cost(load: LoadOption) -> tuple[float, bool, str]:
    return load.waiting.end_ms, load.waiting.evicts, load.place.gpu.id


def _is_leaving(model: str, place: GpuWeights) -> bool:
    """True if an eviction or an earlier fetch of it has not ended there."""
    if any(fetch.work.model == model for fetch in place.fetches):
        return True
    return any(one.model == model for one in place.evicting)
