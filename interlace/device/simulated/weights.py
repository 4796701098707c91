"""What a simulated accelerator holds of weights that come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import inf

from interlace.core.hardware import Gpu
from interlace.core.loading import DISK, LoadPlan, WeightPath
from interlace.core.messages import Evict, Failure, Fetch, WorkFinished
from interlace.core.profile import LayerProfile, Profiles
from interlace.device.base import Done
from interlace.device.simulated.running_batches import Timer
from interlace.device.simulated.weight_links import WeightFlow, WeightLinks, WeightPiece
from interlace.perf.cold_start import HostMemory


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
