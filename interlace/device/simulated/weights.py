"""The swapped weights that a simulated accelerator holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from interlace.core.hardware import Gpu
from interlace.core.loading import DISK, LoadPlan, WeightPath
from interlace.core.messages import Evict, Failure, Fetch, WorkFinished
from interlace.core.profile import LayerProfile, Profiles
from interlace.device.base import Done
from interlace.device.simulated.running_batches import Timer
from interlace.perf.cold_start import HostMemory


class WeightPiece(NamedTuple):
    """One layer's weights: over which link, for how long, and how long a peer passes them on.

    ``read_ms`` is how long the disk brings them to the host before; what stays there has no copy.
    """

    layer: int
    link: str
    copy_ms: float
    pass_ms: float = 0.0
    read_ms: float = 0.0


class WeightFlow:
    """One load: its pieces in order, and when each has come.

    ``sooner`` is called when one before it was given up, on whatever accelerator.
    """

    __slots__ = ("_begins_ms", "arrives_ms", "begin_ms", "over", "pieces", "sooner")

    def __init__(self, pieces: Sequence[WeightPiece], begin_ms: float) -> None:
        self.sooner: Callable[[], None] = lambda: None
        self.pieces = list(pieces)
        self.begin_ms = begin_ms
        self.arrives_ms: dict[int, float] = {}
        self.over = False
        self._begins_ms: list[float] = []

    @property
    def end_ms(self) -> float:
        return max(self.arrives_ms.values(), default=self.begin_ms)

    def stop(self, now_ms: float) -> None:
        """What has not begun is not copied; what has is."""
        begun = sum(1 for begins_ms in self._begins_ms if begins_ms <= now_ms)
        for piece in self.pieces[begun:]:
            self.arrives_ms.pop(piece.layer)
        del self.pieces[begun:], self._begins_ms[begun:]

    def lay(self, free_ms: dict[str, float]) -> None:
        """Take the links behind what they have; ``free_ms`` is moved on."""
        passed_ms: dict[str, float] = {}
        self._begins_ms.clear()
        for piece in self.pieces:
            begins_ms = max(self.begin_ms, free_ms.get(piece.link, -inf))
            # A copy that waits for the disk keeps its link from nobody.
            free_ms[piece.link] = arrives_ms = begins_ms + piece.copy_ms
            if piece.read_ms:
                begins_ms = max(self.begin_ms, free_ms.get(DISK, -inf))
                free_ms[DISK] = begins_ms + piece.read_ms
                arrives_ms = max(arrives_ms, free_ms[DISK] + piece.copy_ms)
            if piece.pass_ms:
                arrives_ms = max(arrives_ms, passed_ms.get(piece.link, -inf)) + piece.pass_ms
                passed_ms[piece.link] = arrives_ms
            self._begins_ms.append(begins_ms)
            self.arrives_ms[piece.layer] = arrives_ms


class WeightLinks:
    """Flows take links in the order in which they begin; each link carries a piece at a time.

    Two loads over one switch therefore take as long as one after the other (DeepPlan, Table 2).
    """

    def __init__(self) -> None:
        self._flows: list[WeightFlow] = []
        self._free_ms: dict[str, float] = {}  #: before the first of the flows

    def begin(self, pieces: Sequence[WeightPiece], now_ms: float) -> WeightFlow:
        """A load begins; when its pieces come is known from now on, unless one before it stops."""
        flow = WeightFlow(pieces, now_ms)
        self._flows.append(flow)
        self._lay()
        return flow

    def end(self, flow: WeightFlow) -> None:
        """All of it has come."""
        flow.over = True
        self._lay()

    def stop(self, flow: WeightFlow, now_ms: float) -> None:
        """It is given up: those behind it come sooner."""
        flow.stop(now_ms)
        self.end(flow)
        for other in self._flows:
            if not other.over:
                other.sooner()

    def _lay(self) -> None:
        while self._flows and self._flows[0].over:
            self._flows.pop(0).lay(self._free_ms)
        free_ms = dict(self._free_ms)
        for flow in self._flows:
            flow.lay(free_ms)


class FetchUnderWay:
    """A fetch that goes on, or ``failed``."""

    __slots__ = ("done", "failed", "flow", "work")

    def __init__(self, work: Fetch, flow: WeightFlow, done: Done) -> None:
        self.work = work
        self.flow = flow
        self.done = done
        self.failed = False


class SimulatedWeights:
    """Layers arrive in order over links that others use too; batches stall where one is missing.

    ``links`` and ``host`` may be shared by several accelerators. What is held and on its way
    together never exceeds the budget: a fetch beyond it fails.
    """

    def __init__(self, gpu: Gpu, timer: Timer, truth: Profiles) -> None:
        self.links = WeightLinks()
        self.host = None if gpu.host is None else HostMemory(gpu.host)
        self._gpu = gpu
        self._timer = timer
        self._truth = truth
        self._hosts: dict[str, set[str]] = {}  #: partitions that have loaded it
        self._held: dict[str, set[int]] = {}
        self._left: dict[str, set[int]] = {}  #: read from the host, after the plans since evicted
        self._open: dict[str, FetchUnderWay] = {}
        self._faults: list[Failure] = []
        self.held_bytes = 0  #: of all models, on their way or there

    def fail_next(self, failure: Failure) -> None:
        """Make the next fetch that ends fail."""
        self._faults.append(failure)

    def loaded(self, model: str, partition: str) -> None:
        """A partition has loaded the model."""
        self._hosts.setdefault(model, set()).add(partition)

    def unloaded(self, model: str, partition: str, detail: str = "unloaded") -> None:
        """It has it no more; what is held is forgotten with the last one."""
        hosts = self._hosts.get(model, set())
        if partition not in hosts:
            return
        hosts.discard(partition)
        one = self._open.get(model)
        if one is not None and (one.work.partition == partition or not hosts):
            self._fail(one, Failure(detail, innocent=True))
        if not hosts:
            del self._hosts[model]
            self.held_bytes -= self._bytes(model, self._held.pop(model, ()))
            self._left.pop(model, None)

    def left(self, partition: str, detail: str = "unloaded") -> None:
        """The partition is gone, and with it all that it had loaded."""
        for model in list(self._hosts):
            self.unloaded(model, partition, detail)

    def fetch(self, work: Fetch, done: Done) -> None:
        """Begin to bring weights, for a partition that has loaded the model."""
        layers, needed_bytes = self._layers(work.model), self._bytes(work.model, work.plan.brought)
        refusal = None
        if work.partition not in self._hosts.get(work.model, ()):
            why = f"{work.model} is not loaded in partition '{work.partition}' of {self._gpu.id}"
            self._answer(done, WorkFinished(work, failure=Failure(why, innocent=True)))
            return
        if work.model in self._open:
            refusal = f"weights of {work.model} are being fetched already"
        elif len(work.plan.steps) != len(layers):
            refusal = f"a plan of {len(work.plan.steps)} layers for {work.model}: {len(layers)}"
        elif self.held_bytes + needed_bytes > self._gpu.weights_bytes:
            refusal = (
                f"no room for {needed_bytes} bytes of {work.model}: {self.held_bytes} of "
                f"{self._gpu.weights_bytes} are held"
            )
        if refusal is not None:
            self._answer(done, WorkFinished(work, failure=Failure(refusal)))
            return
        held = self._held.setdefault(work.model, set())
        self._left.setdefault(work.model, set()).update(
            index
            for index, step in enumerate(work.plan.steps)
            if step.via is WeightPath.HOST and index not in held
        )
        pieces = list(self._pieces(work.model, work.plan, layers))
        flow = self.links.begin(pieces, self._timer.now_ms())
        one = self._open[work.model] = FetchUnderWay(work, flow, done)
        flow.sooner = partial(self._look, one)
        self.held_bytes += needed_bytes
        self._look(one)

    def cancel(self, model: str) -> None:
        """Nobody waits for it any more."""
        if model in self._open:
            self._fail(self._open[model], Failure("cancelled"))

    def evict(self, work: Evict, done: Done) -> None:
        """Give the memory of layers back."""
        held = self._held.get(work.model, set())
        self.held_bytes -= self._bytes(work.model, held.intersection(work.layers))
        held.difference_update(work.layers)
        self._left.pop(work.model, None)
        self._answer(done, WorkFinished(work))

    def clear(self, detail: str) -> None:
        for one in list(self._open.values()):
            self._fail(one, Failure(detail), now=True)
        self._hosts.clear()
        self._held.clear()
        self.held_bytes = 0

    def takes_ms(self, model: str, work_ms: float) -> float | None:
        """How long a batch takes that begins now, of ``work_ms`` with all weights there.

        ``None`` if weights of it are neither there, nor on their way, nor read from the host.
        """
        layers, held = self._layers(model), self._held.get(model, set())
        left = self._left.get(model, set())
        one = self._open.get(model)
        arrives_ms = one.flow.arrives_ms if one is not None else {}
        brought = one.work.plan.brought if one is not None else ()
        times = work_ms / (sum(layer.run_ms for layer in layers) or inf)
        begin_ms = now_ms = self._timer.now_ms()
        for index, layer in enumerate(layers):
            if layer.weights_bytes and index not in held:
                now_ms = max(now_ms, arrives_ms.get(index, now_ms))
                if index in left and index not in brought:
                    now_ms += layer.run_host_ms - layer.run_ms
                elif index not in arrives_ms:
                    return None
            now_ms += times * layer.run_ms
        return now_ms - begin_ms

    def awaited(self, model: str) -> FetchUnderWay | None:
        """The fetch that brings weights which a batch that begins now has to wait for."""
        one, held = self._open.get(model), self._held.get(model, set())
        return one if one is not None and set(one.work.plan.brought) - held else None

    def _look(self, one: FetchUnderWay) -> None:
        """Come back when all of it has come; that may be sooner or later than was known."""
        self._timer.call_at(max(one.flow.end_ms, self._timer.now_ms()), partial(self._due, one))

    def _due(self, one: FetchUnderWay) -> None:
        if self._open.get(one.work.model) is not one:
            return
        if self._timer.now_ms() < one.flow.end_ms:
            self._look(one)
            return
        if self._faults:
            self._fail(one, self._faults.pop(0), now=True)
            return
        self.links.end(one.flow)
        del self._open[one.work.model]
        held, brought = self._held[one.work.model], one.work.plan.brought
        self.held_bytes -= self._bytes(one.work.model, held.intersection(brought))
        held.update(brought)
        self._left[one.work.model].difference_update(brought)
        one.done(WorkFinished(one.work))

    def _fail(self, one: FetchUnderWay, failure: Failure, now: bool = False) -> None:
        one.failed = True
        self.links.stop(one.flow, self._timer.now_ms())
        self.held_bytes -= self._bytes(one.work.model, one.work.plan.brought)
        del self._open[one.work.model]
        finished = WorkFinished(one.work, failure=failure)
        if now:
            one.done(finished)
        else:
            self._answer(one.done, finished)

    def _answer(self, done: Done, finished: WorkFinished) -> None:
        self._timer.call_at(self._timer.now_ms(), lambda: done(finished))

    def _pieces(
        self, model: str, plan: LoadPlan, layers: tuple[LayerProfile, ...]
    ) -> Iterator[WeightPiece]:
        """What is copied; where the host does not have the model, after its disk has read it."""
        links, names, tier = self._gpu.links, self._gpu.link_names, self._gpu.host
        whole_bytes = self._bytes(model, range(len(layers)))
        if self.host is None or self.host.use(model, whole_bytes):
            tier = None
        brought = frozenset(plan.brought)
        for index, (step, layer) in enumerate(zip(plan.steps, layers, strict=True)):
            read_ms = 0.0 if tier is None else tier.read_ms(layer.weights_bytes)
            if index in brought:
                passes = step.via is WeightPath.PEER
                pass_ms = layer.weights_bytes / links.peer_bytes_per_ms if passes else 0.0
                yield WeightPiece(index, names[step.link], layer.copy_ms, pass_ms, read_ms)
            elif read_ms and step.via is WeightPath.HOST:
                yield WeightPiece(index, DISK, 0.0, read_ms=read_ms)

    def _layers(self, model: str) -> tuple[LayerProfile, ...]:
        return self._truth[model].layers

    def _bytes(self, model: str, layers: Iterable[int]) -> int:
        known = self._layers(model)
        return sum(known[index].weights_bytes for index in layers)
