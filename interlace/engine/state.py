"""The engine's state: deployed models, live partitions, the plan to bring them in line with."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Final, NamedTuple

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.core.request import LaterStage, Request
from interlace.engine.corrections import AdmissionMargin, LatencyEstimator
from interlace.engine.input_pool import InputPool
from interlace.engine.live_partition import LivePartition, PartitionState, ServiceTags
from interlace.engine.plan_diff import settled
from interlace.engine.request_queue import RequestQueue
from interlace.engine.residency import GpuWeights, ModelWeights
from interlace.policy.decision import Tally
from interlace.policy.view import ModelView, kept_room

#: Batch starts remembered per model and accelerator.
_STARTS: Final = 256
#: So many models may be noted as waiting that do not any more, and as many as do.
_FEW: Final = 16


@dataclass(slots=True)
class DeployedModel(ModelView):
    """One deployed model: its SLO, its queues, the partitions that host it."""

    demand: Demand = field()  # see ``LivePartition.id``
    profile: Profile
    queue: RequestQueue
    estimator: LatencyEstimator
    admission_margin: AdmissionMargin
    hosts: tuple[LivePartition, ...] = ()
    lenders: tuple[LivePartition, ...] = ()  #: where it is a guest
    shares_pct: tuple[int, ...] = ()  #: those of its hosts, each once
    gpus: tuple[str, ...] = ()  #: where it has hosts or lenders
    alike: bool = True  #: its hosts are of one share, and none has another model's turns
    pools: dict[str, InputPool] = field(default_factory=dict)  #: staged inputs by accelerator
    crashes_ms: list[float] = field(default_factory=list)
    failed_loads: int = 0  #: since one of it ended well
    lost_request_ms: float = float("-inf")  #: when a request was last refused, dropped or late
    lost_rows: int = 0  #: since a batch of it last began
    quarantine_reason: str | None = None  #: why it is not served now
    retry_at_ms: float = float("inf")  #: when a quarantine ends
    quarantine_ms: float = 0.0  #: how long the last quarantine was
    leaving: bool = False
    status_reported: bool = False  #: its owner was told: ready, or failed
    pinned: bool = False
    keep_ms: float = 0.0
    limit_ms: float = 0.0
    #: its weights by accelerator, where they are swapped, and when they are predicted to be loaded
    weights: dict[str, ModelWeights] = field(default_factory=dict)
    ready_ms: float = float("-inf")

    @property
    def admission_margin_ms(self) -> float:
        return self.admission_margin.margin_ms

    def latency_ms(self, rows: int, share_pct: int, shape: Hashable = None) -> float:
        """Predicted latency of a batch, corrected by what was measured lately."""
        return self.estimator.latency_ms(rows, share_pct, shape)

    @property
    def queues(self) -> Sequence[RequestQueue | InputPool]:
        """Where its requests wait: not staged, and staged on each accelerator."""
        return (self.queue, *self.pools.values())

    @property
    def waiting(self) -> int:
        """Requests that wait, staged or not."""
        return sum(len(place) for place in self.queues) if self.pools else len(self.queue)

    def remove(self, request_id: int) -> Request | None:
        """Take a waiting request out; ``None`` if it does not wait."""
        for place in self.queues:
            if (request := place.remove(request_id)) is not None:
                return request
        return None

    def earliest_start_ms(self, now_ms: float) -> float:
        """The earliest start of a batch that is launched now."""
        soonest_ms = inf
        for host in self.hosts:
            if host.takes_from_ms == -inf:
                return now_ms
            if host.takes_from_ms <= now_ms:
                soonest_ms = min(soonest_ms, host.free_at_ms)
        return now_ms if soonest_ms == inf else max(now_ms, soonest_ms)

    @property
    def full(self) -> bool:
        return self.waiting >= self.queue.limit


class PartitionTurns(NamedTuple):
    """A partition's slots by model, with their places in plan order, and who may wait there."""

    by_model: dict[str, list[tuple[int, Slot]]]
    waiting: dict[str, DeployedModel]  #: that of its accelerator in ``EngineState.waiting_on``


@dataclass(slots=True)
class EngineState:
    """Everything mutable, in one place; only the engine's parts change it."""

    fleet: Fleet  #: accelerators that can be used now
    reserve: dict[str, Gpu] = field(default_factory=dict)  #: accelerators that can be added
    elastic: bool = False  #: accelerators can be added and given back
    priced: bool = False  #: accelerators differ in price, so rates decide how many are used
    short_since_ms: float | None = None  #: since when accelerators are missing
    models: dict[str, DeployedModel] = field(default_factory=dict)
    partitions: dict[str, LivePartition] = field(default_factory=dict)
    settled: bool = True  #: every model is loaded in each partition that the plan gives it
    settled_reported: bool = True  #: what was last reported of ``settled``
    #: found by ``update_hosts`` so that decisions need not search: partitions of each accelerator,
    #: turns of each partition
    partitions_on: dict[str, list[LivePartition]] = field(default_factory=dict)
    turns_of: dict[str, PartitionTurns] = field(default_factory=dict)
    running_on: dict[str, dict[str, LivePartition]] = field(default_factory=dict)  #: with a batch
    #: partitions and slots of each model, by accelerator
    lanes_on: dict[str, dict[str, list[tuple[LivePartition, Slot]]]] = field(default_factory=dict)
    _indexed: set[str] = field(default_factory=set)  #: the models in these indexes
    #: models with waiting requests, and at most about as many without, in all and by accelerator:
    #: the cost of an event does not grow with idle models
    waiting: dict[str, DeployedModel] = field(default_factory=dict)
    waiting_on: dict[str, dict[str, DeployedModel]] = field(default_factory=dict)
    _most_noted: int = 0
    #: who contends for what: the partitions that share one set of tags, by accelerator
    contests_on: dict[str, list[tuple[ServiceTags, list[LivePartition]]]] = field(
        default_factory=dict
    )
    target: Plan = field(default_factory=Plan)
    weights_on: dict[str, GpuWeights] = field(default_factory=dict)  #: where there is a budget
    cold_waiting: dict[str, None] = field(default_factory=dict)  #: models that may wait for weights
    #: stages that requests of apps still have before them, by model, and their places there
    coming: dict[str, RequestQueue] = field(default_factory=dict)
    _coming_of: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    _coming_serial: int = 0
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    starts_ms: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)
    owners: dict[tuple[str, int | str], str] = field(default_factory=dict)  #: partitions
    cancelled: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)  #: running, and reported as timed out
    timeout_ms: float = float("inf")  #: when running batches are next checked
    batch_serial: int = 0
    partition_serial: int = 0
    partitions_lost: int = 0
    lost_request_ms: float = float("-inf")  #: when any model last lost a request

    def queue_up(self, deployed: DeployedModel, request: Request) -> None:
        """A request joins its model's queue."""
        deployed.queue.push(request)
        if request.model not in self.waiting:
            if len(self.waiting) >= self._most_noted:
                self._note_waiting(self.waiting.values())
            self.waiting[request.model] = deployed
            for gpu in deployed.gpus:
                self.waiting_on[gpu][request.model] = deployed

    def _note_waiting(self, models: Iterable[DeployedModel]) -> None:
        """Note those that wait of these models, and no others."""
        self.waiting = {one.demand.model: one for one in models if one.waiting}
        for there in self.waiting_on.values():
            there.clear()
        for model, deployed in self.waiting.items():
            for gpu in deployed.gpus:
                self.waiting_on[gpu][model] = deployed
        self._most_noted = _FEW + 2 * len(self.waiting)

    def expect_stages(self, app_request: int, later: Sequence[LaterStage]) -> None:
        """An app's request has these stages before it, and no others."""
        for model, number in self._coming_of.pop(app_request, ()):
            if (queue := self.coming.get(model)) is not None:
                queue.remove(number)
                if not queue.rows:
                    del self.coming[model]
        places = []
        for stage in later:
            if stage.model in self.models and stage.rows:
                self._coming_serial += 1
                row = Request(self._coming_serial, stage.model, 0.0, stage.deadline_ms, stage.rows)
                self.coming.setdefault(stage.model, RequestQueue(0)).push(row)
                places.append((stage.model, row.id))
        if places:
            self._coming_of[app_request] = places

    def tally(self, gpu: str, model: str) -> Tally:
        """The model's last start and accelerator time there."""
        return self.tallies.get(gpu, {}).get(model) or Tally()

    def charge(self, gpu: str, model: str, started_ms: float, busy_ms: float) -> None:
        """Add accelerator time that a batch took."""
        tallies = self.tallies.setdefault(gpu, {})
        before = tallies.get(model, Tally())
        tallies[model] = Tally(started_ms, before.busy_ms + busy_ms)

    def began(self, gpu: str, model: str, now_ms: float) -> None:
        """Remember the start of a batch."""
        starts = self.starts_ms.get((gpu, model))
        if starts is None:
            starts = self.starts_ms[gpu, model] = deque(maxlen=_STARTS)
        starts.append(now_ms)

    def runs_since(self, gpu: str, model: str, since_ms: float) -> int:
        """Batches of the model that began there at or after ``since_ms``; 256 at most."""
        starts = self.starts_ms.get((gpu, model))
        if starts is None:
            return 0
        return sum(1 for _ in takewhile(lambda at_ms: at_ms >= since_ms, reversed(starts)))

    def forget(self, model: str) -> None:
        """Remove everything about a deployment that is gone."""
        del self.models[model]
        self.waiting.pop(model, None)
        self.coming.pop(model, None)
        self.cold_waiting.pop(model, None)
        for tallies in self.tallies.values():
            tallies.pop(model, None)
        for key in [key for key in self.starts_ms if key[1] == model]:
            del self.starts_ms[key]
        for live in self.partitions.values():
            live.starts_ms.pop(model, None)

    def served(self) -> set[str]:
        """The models that plans are made for: neither leaving nor quarantined."""
        return {m for m, t in self.models.items() if t.quarantine_reason is None and not t.leaving}

    def wants(self, model: str) -> bool:
        """True if the plan has a slot for the model."""
        return any(slot.model == model for p in self.target.partitions for slot in p.slots)

    def update_hosts(self) -> set[str]:
        """Work out slots of partitions and hosts of models from the loaded and the planned ones.

        Returns the models with a turn that changed or moved.
        """
        wanted = {p.id: p for p in self.target.partitions}
        switched = settled(self.partitions, self.target)
        there: dict[str, list[LivePartition]] = {gpu.id: [] for gpu in self.fleet.gpus}
        moved: set[str] = set()
        recut: set[str] = set()
        hosts: dict[str, list[LivePartition]] = {name: [] for name in self.models}
        lenders: dict[str, list[LivePartition]] = {name: [] for name in self.models}
        for live in self.partitions.values():
            there.setdefault(live.gpu, []).append(live)
            slots = _slots(live, wanted.get(live.id), switched)
            if slots != live.slots:
                moved.update(slot.model for slot in live.slots)
                moved.update(slot.model for slot in slots)
                recut.add(live.gpu)
                live.slots = slots
                live.own_turns = sum(not slot.guest for slot in slots)
            if live.accepting:
                for slot in slots:
                    if slot.model in self.models:
                        (lenders if slot.guest else hosts)[slot.model].append(live)
        self.settled = switched
        for name, deployed in self.models.items():
            if not (_same(deployed.hosts, hosts[name]) and _same(deployed.lenders, lenders[name])):
                deployed.hosts, deployed.lenders = tuple(hosts[name]), tuple(lenders[name])
                moved.add(name)
        self._index(there, recut)
        for name in moved & self.models.keys():
            self._find_places(self.models[name])
        self._note_waiting(self.models.values())
        return moved

    def _index(self, there: dict[str, list[LivePartition]], recut: set[str]) -> None:
        """Find what is where, so that decisions need not search for it: where that has changed."""
        names = set(self.models)
        known, self.partitions_on = self.partitions_on, there
        self.running_on = {
            gpu: {live.id: live for live in places if live.batch} for gpu, places in there.items()
        }
        for gone in known.keys() - there.keys():
            del self.waiting_on[gone], self.contests_on[gone], self.lanes_on[gone]
        self.turns_of = {
            name: self.turns_of[name] for name in self.turns_of.keys() & self.partitions
        }
        for gpu, places in there.items():
            old = known.get(gpu)
            if old is None or gpu in recut or names != self._indexed or not _same(old, places):
                waiting = self.waiting_on.setdefault(gpu, {})
                self.lanes_on[gpu] = self._lanes(places)
                for live in places:
                    self.turns_of[live.id] = PartitionTurns(self._turns(live), waiting)
                self.contests_on[gpu] = []
        for one in self.fleet.gpus:
            if not self.contests_on[one.id]:
                self._find_rivals(one)
        self._indexed = names

    def _lanes(
        self, places: Iterable[LivePartition]
    ) -> dict[str, list[tuple[LivePartition, Slot]]]:
        lanes: dict[str, list[tuple[LivePartition, Slot]]] = {name: [] for name in self.models}
        for live in places:
            for slot in live.slots:
                if slot.model in lanes:
                    lanes[slot.model].append((live, slot))
        return lanes

    def _turns(self, live: LivePartition) -> dict[str, list[tuple[int, Slot]]]:
        turns: dict[str, list[tuple[int, Slot]]] = {}
        for place, slot in enumerate(live.slots):
            if slot.model in self.models:
                turns.setdefault(slot.model, []).append((place, slot))
        return turns

    def _find_places(self, deployed: DeployedModel) -> None:
        deployed.shares_pct = tuple(dict.fromkeys(host.share_pct for host in deployed.hosts))
        crowded = any(host.own_turns > 1 for host in deployed.hosts)
        deployed.alike = len(deployed.shares_pct) <= 1 and not crowded
        places = (*deployed.hosts, *deployed.lenders)
        deployed.gpus = tuple(dict.fromkeys(place.gpu for place in places))

    def _find_rivals(self, gpu: Gpu) -> None:
        """Models contend for a partition, or, where partitions overlap, for the accelerator."""
        places, used = self.partitions_on[gpu.id], set[int]()
        whole = sum(live.room for live in places if live.slots) > gpu.room
        tight = self._tight(places) if whole else []
        for group in [places] if whole else [[live] for live in places]:
            tags = group[0].service_tags
            if id(tags) in used:  # they overlapped before
                tags = ServiceTags()
            used.add(id(tags))
            for live in group:
                live.service_tags, live.rivals, live.tight = tags, group, tight
                live.kept_room = self._kept_room(live)
                part = live.room / gpu.room if live.slots else 0.0
                live.room_part = part if whole else 1.0
            tags.plan(slot for live in group for slot in live.slots)
            self.contests_on[gpu.id].append((tags, group))

    def _kept_room(self, live: LivePartition) -> int:
        """What ``tight`` asks of a batch of one row here, of whichever model asks least."""
        loaded = (self.models[slot.model] for slot in live.slots if slot.model in self.models)
        runs_ms = (deployed.latency_ms(1, live.share_pct) for deployed in loaded)
        return min((kept_room(live.tight, run_ms) for run_ms in runs_ms), default=0)

    def _tight(self, places: Sequence[LivePartition]) -> list[tuple[float, int]]:
        """Of each model the slack, and the least room that a row takes in time: see ``tight``."""
        least: dict[str, tuple[int, float]] = {}
        for live in places:
            for slot in live.slots:
                deployed = self.models.get(slot.model)
                if deployed is not None:
                    slack_ms = deployed.demand.slo_ms - deployed.latency_ms(1, live.share_pct)
                    lane = live.room, slack_ms
                    if slack_ms >= 0.0:
                        least[slot.model] = min(least.get(slot.model, lane), lane)
        found: list[tuple[float, int]] = []
        for room, slack_ms in sorted(least.values(), key=lambda lane: (lane[1], lane[0])):
            if not found or room > found[-1][1]:
                found.append((slack_ms, room))
        return found

    def drop_from_target(self, model: str, partition: str | None = None) -> None:
        """Take a model out of the plan, in one partition or everywhere."""
        partitions = tuple(
            _without(p, model) if partition in (None, p.id) else p for p in self.target.partitions
        )
        self.target = replace(
            self.target,
            partitions=partitions,
            unserved_rows_per_s={
                m: r for m, r in self.target.unserved_rows_per_s.items() if m != model
            },
            reasons={m: r for m, r in self.target.reasons.items() if m != model},
        )


def _slots(live: LivePartition, wanted: Partition | None, switched: bool) -> Sequence[Slot]:
    """The wanted slots that are loaded; until the plan is settled also the old ones that are."""
    if live.state is not PartitionState.READY:
        return ()
    now = [slot for slot in wanted.slots if live.loaded(slot.model)] if wanted else []
    if switched:
        return tuple(now)
    names = {slot.model for slot in now}
    old = [s for s in live.slots if s.model not in names and live.loaded(s.model)]
    return (*now, *old)


def _same(one: Sequence[LivePartition], other: Sequence[LivePartition]) -> bool:
    """Whether these are the same partitions: not only equal ones."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _without(partition: Partition, model: str) -> Partition:
    slots = tuple(slot for slot in partition.slots if slot.model != model)
    return Partition(partition.id, partition.gpu, partition.share_pct, slots, partition.duty_ms)
