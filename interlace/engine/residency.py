"""What accelerators hold of weights that come and go, and what is on its way to them."""

from __future__ import annotations

from math import inf
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.loading import DISK, LoadPlan
from interlace.core.messages import Evict, Fetch
from interlace.engine.arrival_rate import ArrivalRate
from interlace.engine.missing_weights import MissingWeights
from interlace.engine.request_queue import RequestQueue
from interlace.perf.cold_start import executes_ms
from interlace.policy.cold_curve import ColdCurve

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
        self, model: str, curve: ColdCurve, queue: RequestQueue, rate: ArrivalRate, gpu: GpuWeights
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
        self.missing = MissingWeights()
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


class LinkBeliefs:
    """When each link is predicted to be free, and how its pace differs from what was measured."""

    #: What one more fetch says of the pace, and bounds of it.
    _WEIGHT: Final = 0.2
    _LEAST: Final = 0.25
    _MOST: Final = 10.0

    def __init__(self) -> None:
        self._free_ms: dict[str, float] = {}
        self._pace: dict[str, float] = {}

    def free_ms(self, link: str) -> float:
        return self._free_ms.get(link, -inf)

    def pace(self, link: str) -> float:
        """Times as measured take so many times as long."""
        return self._pace.get(link, 1.0)

    def begin(self, fetch: FetchInFlight, entry: ModelWeights, links: tuple[str, ...]) -> None:
        """A fetch takes its links behind what is on them."""
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
        """The disk is read for a fetch until then; its first batch may begin before."""
        self._free_ms[DISK] = read_until_ms
        fetch.from_disk = True
        fetch.ends_ms = max(fetch.ends_ms, read_until_ms)
        fetch.opens_ms = max(fetch.opens_ms, opens_ms)

    def ended(self, fetch: FetchInFlight, links: tuple[str, ...], now_ms: float) -> None:
        """A fetch is over: its links are free, unless another is on them."""
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
