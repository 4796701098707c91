"""Weights on accelerators that swap them: what is resident, missing and in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.loading import LoadPlan
from interlace.core.messages import Evict, Fetch
from interlace.engine.request_queue import RequestQueue
from interlace.perf.cold_start import executes_ms
from interlace.policy.cold_curve import ColdCurve

#: Weight of the newest gap in the mean, once there are many.
_LEAST_WEIGHT: Final = 1 / 32
#: The planned rate counts as this many gaps: it says more than the first few.
_PLANNED_GAPS: Final = 8
#: Lower planned rates are ignored; shorter gaps count as one burst.
_LEAST_RPS: Final = 1e-9
_LEAST_GAP_MS: Final = 1e-3


class GapEstimator:
    """Estimates the rate of one model in visits per second.

    Requests within ``visit_ms`` of each other are one visit: they share a cold start. The estimate
    is the mean gap: a plain mean of the first gaps, in which the planned rate counts as some of
    them, then a moving mean of about 32. An open gap counts once it is longer than the mean, so a
    model without requests is forgotten.
    """

    __slots__ = ("_gap_ms", "_gaps", "_last_ms", "_visit_ms")

    def __init__(self, since_ms: float, planned_rps: float = 0.0, visit_ms: float = 0.0) -> None:
        self._last_ms = since_ms
        self._gaps = _PLANNED_GAPS if planned_rps > _LEAST_RPS else 0
        self._gap_ms = 1000.0 / planned_rps if self._gaps else 0.0
        self._visit_ms = visit_ms

    def arrived(self, now_ms: float) -> None:
        """Count a request."""
        gap_ms = now_ms - self._last_ms
        if gap_ms < self._visit_ms:
            return
        self._last_ms = now_ms
        self._gap_ms = self._with(gap_ms)
        self._gaps += 1

    def rps(self, now_ms: float) -> float:
        """Return the estimated visits per second at ``now_ms``."""
        if self._gaps == 0:
            return 0.0
        gap_ms = now_ms - self._last_ms
        mean_ms = self._gap_ms if gap_ms <= self._gap_ms else self._with(gap_ms)
        return 1000.0 / max(mean_ms, _LEAST_GAP_MS)

    def sure_rps(self, now_ms: float) -> float:
        """Return a lower bound: one deviation below the estimate, 0 after one gap."""
        counted = min(self._gaps, 1.0 / _LEAST_WEIGHT)
        return self.rps(now_ms) * (1.0 - counted**-0.5) if counted else 0.0

    def _with(self, gap_ms: float) -> float:
        if self._gaps == 0:
            return gap_ms
        weight = max(_LEAST_WEIGHT, 1.0 / (self._gaps + 1))
        return self._gap_ms + weight * (gap_ms - self._gap_ms)


#: The heap may keep this many outdated bounds, and as many as there are models.
_SPARE: Final = 64


class PrefetchQueue:
    """Models on one accelerator by the worth of their missing weights, most worth first.

    A heap of upper bounds: a worth only falls until ``changed`` is called, since rates fall. So the
    worth at the last look bounds the present one, and only models at the top are looked at again.
    A look costs by what changed since the last one, not by the number of models.
    """

    def __init__(self) -> None:
        self._bounds: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._changed: dict[str, ModelWeights] = {}
        self._entries: dict[str, ModelWeights] = {}

    def changed(self, entry: ModelWeights) -> None:
        """Note that its rate, or its resident or fetched layers, changed."""
        self._changed[entry.model] = entry

    def forget(self, model: str) -> None:
        """Remove a model."""
        for known in (self._bounds, self._changed, self._entries):
            known.pop(model, None)

    def hottest(self) -> str | None:
        """Return the model whose missing weights are worth most; ``None`` if none are."""
        for model, entry in self._changed.items():
            self._entries[model] = entry
            self._bounds[model] = entry.missing_worth
            heappush(self._heap, (-self._bounds[model], model))
        self._changed.clear()
        if len(self._heap) > _SPARE + 2 * len(self._bounds):
            self._heap = [(-worth, model) for model, worth in self._bounds.items()]
            heapify(self._heap)
        while self._heap:
            bound, model = self._heap[0]
            if self._bounds.get(model) != -bound:
                heappop(self._heap)
                continue
            worth = self._entries[model].missing_worth
            if worth == -bound:
                return model if worth > 0.0 else None
            self._bounds[model] = worth
            heapreplace(self._heap, (-worth, model))
        return None


_NOTHING: Final[frozenset[int]] = frozenset()
#: The number of an accelerator's own link.
_OWN: Final = frozenset({0})


@dataclass(slots=True, eq=False)
class FetchInFlight:
    """A fetch that was sent, with its start and its predicted times.

    ``opens_ms`` is when the first batch may begin: its layers then run without a wait, and it ends
    as early as if it had begun with the fetch. ``ends_ms`` is when the last weights have come.
    """

    work: Fetch
    nbytes: int
    demanded: bool  #: requests wait for it
    whole: bool  #: the model is warm afterwards
    began_ms: float
    #: links by number; a fetch without copies waits its turn on the own one all the same
    uses: frozenset[int] = _OWN
    cancelled: bool = False
    from_disk: bool = False
    ends_ms: float = 0.0
    opens_ms: float = inf

    def __post_init__(self) -> None:
        steps = self.work.plan.steps
        self.uses = frozenset(steps[index].link for index in self.work.plan.brought) or _OWN
        self.ends_ms = self.began_ms


@dataclass(slots=True, eq=False)
class ModelWeights:
    """One model's weights on one accelerator: a ``Holding`` for policies.

    ``there`` are the layers whose weights are held. The model is *warm* if all that the plan it
    came by brought is there; then, or as soon as the first batch may begin, its queue is ``open``
    to dispatchers.
    """

    model: str
    curve: ColdCurve
    queue: RequestQueue
    rate: GapEstimator
    _gpu: GpuWeights
    pinned: bool = False
    wanted: bool = False  #: requests were refused because it is cold
    keep_ms: float = 0.0
    there: frozenset[int] = _NOTHING
    on_disk: bool = False  #: as its device reported
    warm: bool = False
    open: bool = False
    closed: bool = False  #: to be evicted despite its requests: another waited too long
    fetch: FetchInFlight | None = None
    failures: int = 0  #: fetches that failed since one succeeded
    running: int = 0  #: batches
    cold_batches: set[int] = field(default_factory=set)  #: sent before their weights were there
    last_start_ms: float = -inf
    cold_starts: int = 0
    cold_ms: float = 0.0  #: how long they took together

    @property
    def held(self) -> frozenset[int]:
        """The layers that are resident or being fetched."""
        if self.fetch is None:
            return self.there
        return self.there.union(self.fetch.work.plan.brought)

    @property
    def held_bytes(self) -> int:
        return self.curve.nbytes(tuple(self.there))

    @property
    def rate_rps(self) -> float:
        return self.rate.rps(self._gpu.now_ms)

    @property
    def sure_rps(self) -> float:
        return self.rate.sure_rps(self._gpu.now_ms)

    @property
    def fetching(self) -> bool:
        return self.fetch is not None

    @property
    def kept_until_ms(self) -> float:
        """Until when it stays resident because it ran recently."""
        return self.last_start_ms + self.keep_ms

    @property
    def may_leave(self) -> bool:
        """True if its weights may be evicted; while ``forced``, even if requests wait for them."""
        if self.pinned or self.fetch is not None or self.kept_until_ms > self._gpu.now_ms:
            return False
        return self._gpu.forced or not (self.running or self.queue.rows)

    @property
    def missing_worth(self) -> float:
        """Return the worth of fetching more of it: rate x milliseconds saved per byte."""
        missing = None if self.fetch is not None else self.curve.missing(self.there)
        return 0.0 if missing is None else self.rate_rps * missing[0].worth_ms

    @property
    def whole_bytes(self) -> int:
        """Its part of the budget once it is warm."""
        return self.curve.nbytes(self.curve.plan().brought)

    @property
    def pinned_bytes(self) -> int:
        """The part of ``whole_bytes`` that is never evicted."""
        return self.whole_bytes if self.pinned else 0

    def plan(self, on_disk: bool = False) -> LoadPlan:
        """Return the plan that loads the rest, from the host's memory or from its disk.

        A pinned model takes no more than ``whole_bytes``.
        """
        if not on_disk or self.pinned:
            return self.curve.plan(self.there)
        room_bytes = self._gpu.gpu.weights_bytes - self._gpu.pinned_bytes - self.held_bytes
        return self.curve.plan_from_disk(self.there, room_bytes)

    @property
    def read_ms(self) -> float:
        """The time that weights read from the host add to a batch."""
        layers = self.curve.layers
        return sum(
            layer.run_host_ms - layer.run_ms
            for index, layer in enumerate(layers)
            if layer.weights_bytes and index not in self.there
        )

    def lose(self, layers: frozenset[int]) -> None:
        """Evict layers: the model is cold."""
        self.there = self.there - layers
        self.warm = self.open = False

    def copy_ms(self, plan: LoadPlan) -> float:
        """Return the total copy time of a plan."""
        return sum(self.curve.layers[index].copy_ms for index in plan.brought)

    def run_ms(self, plan: LoadPlan) -> float:
        """Return the run time of a row by a plan, without waits."""
        pairs = zip(self.curve.layers, plan.steps, strict=True)
        return sum(executes_ms(layer, step.via) for layer, step in pairs)


@dataclass(slots=True, eq=False)
class GpuWeights:
    """The budget of one accelerator, and what uses it."""

    gpu: Gpu
    links: tuple[str, ...] = ()
    models: dict[str, ModelWeights] = field(default_factory=dict)
    told_on_disk: set[str] = field(default_factory=set)  #: before they were known
    holding: dict[str, ModelWeights] = field(default_factory=dict)  #: with resident layers
    wanted: dict[str, ModelWeights] = field(default_factory=dict)  #: pinned, or refused when cold
    missing: PrefetchQueue = field(default_factory=PrefetchQueue)
    fetches: list[FetchInFlight] = field(default_factory=list)
    evicting: dict[Evict, int] = field(default_factory=dict)
    held_bytes: int = 0
    pinned_bytes: int = 0  #: what models that stay take once they are warm
    now_ms: float = 0.0
    forced: bool = False  #: what is promised may leave as well
    closing: bool = False  #: something of it is closed

    def __post_init__(self) -> None:
        self.links = self.gpu.link_names

    @property
    def free_bytes(self) -> int:
        """The budget without resident, fetched and not yet evicted weights."""
        fetching = sum(one.nbytes for one in self.fetches)
        taken = self.held_bytes + fetching + sum(self.evicting.values())
        return self.gpu.weights_bytes - taken

    def fetched(self, work: Fetch) -> FetchInFlight | None:
        """Remove and return the fetch that ended; ``None`` if it is not known."""
        for one in self.fetches:
            if one.work == work:
                self.fetches.remove(one)
                return one
        return None

    def know(self, entry: ModelWeights) -> None:
        """Add a model that a partition has loaded."""
        self.models[entry.model] = entry
        entry.on_disk = entry.model in self.told_on_disk
        self.told_on_disk.discard(entry.model)
        self.pinned_bytes += entry.pinned_bytes
        self.missing.changed(entry)
        if entry.pinned:
            self.wanted[entry.model] = entry

    def forget(self, model: str) -> None:
        """Remove a model that no partition has loaded."""
        entry = self.models.pop(model)
        self.holding.pop(model, None)
        self.wanted.pop(model, None)
        self.missing.forget(model)
        self.held_bytes -= entry.held_bytes
        self.pinned_bytes -= entry.pinned_bytes

    def hold(self, entry: ModelWeights, layers: frozenset[int]) -> None:
        """Note that the weights of these layers are resident."""
        before = entry.held_bytes
        entry.there = entry.there.union(layers)
        self.held_bytes += entry.held_bytes - before
        if entry.there:
            self.holding[entry.model] = entry

    def release(self, entry: ModelWeights, layers: frozenset[int]) -> Evict:
        """Evict layers; their bytes are free when the device has done it."""
        leaving = entry.there.intersection(layers)
        work = Evict(self.gpu.id, entry.model, tuple(sorted(leaving)))
        nbytes = entry.curve.nbytes(work.layers)
        entry.lose(leaving)
        entry.closed = False
        self.missing.changed(entry)
        if not entry.there:
            self.holding.pop(entry.model, None)
        self.held_bytes -= nbytes
        self.evicting[work] = nbytes
        return work
