"""Weights on accelerators that swap them: what is resident, missing and in flight."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.loading import LoadPlan
from interlace.core.messages import Evict, Fetch
from interlace.engine.request_queue import RequestQueue
from interlace.perf.cold_start import executes_ms
from interlace.policy.cold_curve import ColdCurve

#: The part of the newest gap in the mean, once there are many.
_LEAST_WEIGHT: Final = 1 / 32
#: The planned rate counts as so many gaps: it says more than the first few do.
_PLANNED_GAPS: Final = 8
#: A plan for less says nothing, and rates beyond one a microsecond are one burst.
_LEAST_RPS: Final = 1e-9
_LEAST_GAP_MS: Final = 1e-3


class GapEstimator:
    """The rate of one model, in visits a second: requests within ``visit_ms`` share a cold start.

    The mean of its gaps, each model at its own pace: of the first ones the plain mean, the planned
    rate counted as some of them, later a moving one of about 32. A gap that is still open counts
    once it is longer than the mean, so what is not asked any more is forgotten.
    """

    __slots__ = ("_gap_ms", "_gaps", "_last_ms", "_visit_ms")

    def __init__(self, since_ms: float, planned_rps: float = 0.0, visit_ms: float = 0.0) -> None:
        self._last_ms = since_ms
        self._gaps = _PLANNED_GAPS if planned_rps > _LEAST_RPS else 0
        self._gap_ms = 1000.0 / planned_rps if self._gaps else 0.0
        self._visit_ms = visit_ms

    def arrived(self, now_ms: float) -> None:
        """A request came."""
        gap_ms = now_ms - self._last_ms
        if gap_ms < self._visit_ms:
            return
        self._last_ms = now_ms
        self._gap_ms = self._with(gap_ms)
        self._gaps += 1

    def rps(self, now_ms: float) -> float:
        """Visits a second, as far as is known at that time."""
        if self._gaps == 0:
            return 0.0
        gap_ms = now_ms - self._last_ms
        mean_ms = self._gap_ms if gap_ms <= self._gap_ms else self._with(gap_ms)
        return 1000.0 / max(mean_ms, _LEAST_GAP_MS)

    def sure_rps(self, now_ms: float) -> float:
        """What it is at least, as far as is known: a deviation less, none after one gap."""
        counted = min(self._gaps, 1.0 / _LEAST_WEIGHT)
        return self.rps(now_ms) * (1.0 - counted**-0.5) if counted else 0.0

    def _with(self, gap_ms: float) -> float:
        if self._gaps == 0:
            return gap_ms
        weight = max(_LEAST_WEIGHT, 1.0 / (self._gaps + 1))
        return self._gap_ms + weight * (gap_ms - self._gap_ms)


#: Bounds that hold no more may be kept, so many and as many as there are models.
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
        """A request came for it, or what is there or on its way is not what it was."""
        self._changed[entry.model] = entry

    def forget(self, model: str) -> None:
        """It is not known here any more."""
        for known in (self._bounds, self._changed, self._entries):
            known.pop(model, None)

    def hottest(self) -> str | None:
        """The model whose missing part is worth most now; none if nothing is worth anything."""
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
#: An accelerator's own link, by its number.
_OWN: Final = frozenset({0})


class FetchInFlight:
    """A fetch that was sent, with its begin and what is predicted of it.

    ``opens_ms`` is when the first batch may begin: its layers then run without a wait, and it ends
    as early as if it had begun with the fetch. ``ends_ms`` is when the last weights have come.
    """

    __slots__ = (
        "began_ms",
        "cancelled",
        "demanded",
        "ends_ms",
        "from_disk",
        "nbytes",
        "opens_ms",
        "uses",
        "whole",
        "work",
    )

    def __init__(
        self, work: Fetch, nbytes: int, demanded: bool, whole: bool, now_ms: float
    ) -> None:
        self.work = work
        self.nbytes = nbytes
        self.demanded = demanded  #: requests wait for it
        self.whole = whole  #: the model is warm afterwards
        steps = work.plan.steps
        #: Links by number; what brings nothing waits its turn on the own one all the same.
        self.uses = frozenset(steps[index].link for index in work.plan.brought) or _OWN
        self.cancelled = False
        self.from_disk = False
        self.began_ms = self.ends_ms = now_ms
        self.opens_ms = inf


class ModelWeights:
    """One model's weights on one accelerator: a ``Holding`` for policies.

    ``there`` are the layers whose weights are held. The model is *warm* if all that the plan it
    came by brought is there; then, or as soon as the first batch may begin, its queue is ``open``
    to dispatchers.
    """

    __slots__ = (
        "_gpu",
        "closed",
        "cold_batches",
        "cold_ms",
        "cold_starts",
        "curve",
        "failures",
        "fetch",
        "keep_ms",
        "last_start_ms",
        "model",
        "on_disk",
        "open",
        "pinned",
        "queue",
        "rate",
        "running",
        "there",
        "wanted",
        "warm",
    )

    def __init__(
        self, model: str, curve: ColdCurve, queue: RequestQueue, rate: GapEstimator, gpu: GpuWeights
    ) -> None:
        self.model: str = model
        self.curve: ColdCurve = curve
        self.queue = queue
        self.rate = rate
        self._gpu = gpu
        self.pinned = False
        self.wanted = False  #: requests were refused because it is cold
        self.keep_ms = 0.0
        self.there = _NOTHING
        self.on_disk = False  #: so its device said
        self.warm = False
        self.open = False
        self.closed = False  #: it is to leave, though it has requests: another has waited too long
        self.fetch: FetchInFlight | None = None
        self.failures = 0  #: fetches that failed since one went well
        self.running = 0  #: batches
        self.cold_batches: set[int] = set()  #: those that were sent before their weights were there
        self.last_start_ms: float = -inf
        self.cold_starts = 0
        self.cold_ms = 0.0  #: how long they took together

    @property
    def held(self) -> frozenset[int]:
        """What is there, or on its way."""
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
        """Until when it stays because it ran lately."""
        return self.last_start_ms + self.keep_ms

    @property
    def may_leave(self) -> bool:
        """Nothing of it is in use, promised or wanted to stay; while forced, it may be promised."""
        if self.pinned or self.fetch is not None or self.kept_until_ms > self._gpu.now_ms:
            return False
        return self._gpu.forced or not (self.running or self.queue.rows)

    @property
    def missing_worth(self) -> float:
        """What it is worth to bring more of it: rate x milliseconds saved a byte."""
        missing = None if self.fetch is not None else self.curve.missing(self.there)
        return 0.0 if missing is None else self.rate_rps * missing[0].worth_ms

    @property
    def whole_bytes(self) -> int:
        """What it takes of the budget once it is warm."""
        return self.curve.nbytes(self.curve.plan().brought)

    @property
    def pinned_bytes(self) -> int:
        """What of that never leaves."""
        return self.whole_bytes if self.pinned else 0

    def plan(self, on_disk: bool = False) -> LoadPlan:
        """What brings the rest, from the host's memory or from its disk.

        What is pinned takes no more than is counted for it.
        """
        if not on_disk or self.pinned:
            return self.curve.plan(self.there)
        room_bytes = self._gpu.gpu.weights_bytes - self._gpu.pinned_bytes - self.held_bytes
        return self.curve.plan_from_disk(self.there, room_bytes)

    @property
    def read_ms(self) -> float:
        """What batches of it take longer for weights that are read from the host."""
        layers = self.curve.layers
        return sum(
            layer.run_host_ms - layer.run_ms
            for index, layer in enumerate(layers)
            if layer.weights_bytes and index not in self.there
        )

    def lose(self, layers: frozenset[int]) -> None:
        """These leave: what was warm is not any more."""
        self.there = self.there - layers
        self.warm = self.open = False

    def copy_ms(self, plan: LoadPlan) -> float:
        """How long a plan's copies take together."""
        return sum(self.curve.layers[index].copy_ms for index in plan.brought)

    def run_ms(self, plan: LoadPlan) -> float:
        """How long a row runs by a plan, once it need not wait."""
        pairs = zip(self.curve.layers, plan.steps, strict=True)
        return sum(executes_ms(layer, step.via) for layer, step in pairs)


class GpuWeights:
    """The budget of one accelerator, and what takes of it."""

    __slots__ = (
        "closing",
        "evicting",
        "fetches",
        "forced",
        "gpu",
        "held_bytes",
        "holding",
        "links",
        "missing",
        "models",
        "now_ms",
        "pinned_bytes",
        "told_on_disk",
        "wanted",
    )

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.links = gpu.link_names
        self.models: dict[str, ModelWeights] = {}
        self.told_on_disk: set[str] = set()  #: before they were known
        self.holding: dict[str, ModelWeights] = {}  #: those of which something is there
        self.wanted: dict[str, ModelWeights] = {}  #: pinned, or refused because they were cold
        self.missing = PrefetchQueue()
        self.fetches: list[FetchInFlight] = []
        self.evicting: dict[Evict, int] = {}
        self.held_bytes = 0
        self.pinned_bytes = 0  #: what models that stay take once they are warm
        self.now_ms = 0.0
        self.forced = False  #: what is promised may leave as well
        self.closing = False  #: something of it is closed

    @property
    def fetching_bytes(self) -> int:
        return sum(one.nbytes for one in self.fetches)

    @property
    def free_bytes(self) -> int:
        """What neither is held, nor fetched, nor still to be given back."""
        taken = self.held_bytes + self.fetching_bytes + sum(self.evicting.values())
        return self.gpu.weights_bytes - taken

    def fetched(self, work: Fetch) -> FetchInFlight | None:
        """The fetch that ended; ``None`` if this accelerator knows nothing of it any more."""
        for one in self.fetches:
            if one.work == work:
                self.fetches.remove(one)
                return one
        return None

    def know(self, entry: ModelWeights) -> None:
        """A partition has the model loaded."""
        self.models[entry.model] = entry
        entry.on_disk = entry.model in self.told_on_disk
        self.told_on_disk.discard(entry.model)
        self.pinned_bytes += entry.pinned_bytes
        self.missing.changed(entry)
        if entry.pinned:
            self.wanted[entry.model] = entry

    def forget(self, model: str) -> None:
        """None of its partitions has the model loaded any more."""
        entry = self.models.pop(model)
        self.holding.pop(model, None)
        self.wanted.pop(model, None)
        self.missing.forget(model)
        self.held_bytes -= entry.held_bytes
        self.pinned_bytes -= entry.pinned_bytes

    def hold(self, entry: ModelWeights, layers: frozenset[int]) -> None:
        """The weights of these layers are there."""
        before = entry.held_bytes
        entry.there = entry.there.union(layers)
        self.held_bytes += entry.held_bytes - before
        if entry.there:
            self.holding[entry.model] = entry

    def release(self, entry: ModelWeights, layers: frozenset[int]) -> Evict:
        """Give these up; their bytes are free when the device has done so."""
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
