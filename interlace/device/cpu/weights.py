"""Places of swapped weights in their memory: fetched, placed, evicted.

The main process assigns places, and the worker of one partition copies. The workers of other
partitions get the places before their next batch of that model. Until then, and for weights without
a place, workers read the file's mapping, which is always right.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from interlace.core.messages import Evict, Failure, Fetch, WorkFinished
from interlace.device.base import Done
from interlace.device.cpu.page_cache_watch import PageCacheWatch
from interlace.device.cpu.partition import CpuPartition
from interlace.device.process.wire import (
    Copied,
    CopyWeights,
    EvictWeights,
    Loaded,
    PlaceWeights,
    WorkerAnswer,
)
from interlace.formats.runner import CANCELLED
from interlace.shm.arena import Arena
from interlace.shm.extents import Extents

#: So long after its worker was killed, a copy is surely not writing any more.
_DYING_S: Final = 1.0
#: Memory beyond the budget for the gaps that aligned weights leave.
_GAPS_PART: Final = 1 / 32


@dataclass(slots=True)
class _HeldWeights:
    """One model: the memory its layers take, their offsets where they lie in memory, its hosts.

    ``told`` are by host the layers that it reads in memory, ``readers`` those that may have pages
    of the file mapped, ``copied`` what waits for the end of the copying that is under way.
    """

    layer_bytes: tuple[int, ...]
    offsets: dict[int, int] = field(default_factory=dict)
    hosts: dict[str, CpuPartition] = field(default_factory=dict)
    told: dict[str, set[int]] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    copied: list[Callable[[], None]] = field(default_factory=list)


class _WaitingFetch(NamedTuple):
    """A fetch that waits for room in the page cache, its partition, and what ends it."""

    partition: str
    end: Callable[[], None]


class BudgetedWeights:
    """Memory of ``budget_bytes`` for the weights of all models of a device, taken at once.

    ``tier_changed`` hears which models have most of their weights on disk only, and which not;
    of their files the page cache keeps ``host_bytes`` at most, if given.

    Raises:
        OSError: there is not that much.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        budget_bytes: int,
        tier_changed: Callable[[str, bool], None],
        host_bytes: int | None = None,
    ) -> None:
        self._loop = loop
        self._page_cache = PageCacheWatch(loop, tier_changed, host_bytes, self._give_up_file)
        self.arena = Arena.create(int(budget_bytes * (1 + _GAPS_PART)))
        try:
            self.arena.touch()
        except OSError as error:
            self.arena.close()
            raise OSError(
                error.errno, f"no {budget_bytes >> 20} MiB of memory for weights: {error.strerror}"
            ) from None
        self._extents = Extents(self.arena.size_bytes)
        self._models: dict[str, _HeldWeights] = {}
        self._copying: dict[str, CpuPartition] = {}
        self._waiting: dict[str, _WaitingFetch] = {}

    def loaded(self, model: str, partition: CpuPartition, loaded: Loaded) -> None:
        """A partition has the model open."""
        held = self._models.setdefault(model, _HeldWeights(loaded.layer_bytes))
        held.hosts[partition.name] = partition
        held.told[partition.name] = set()
        self._page_cache.watch(model, Path(loaded.weights_file), loaded.tables)
        if loaded.was_read:
            held.readers.add(partition.name)
            self._page_cache.read(model)

    def before_batch(self, model: str, partition: str) -> None:
        """A partition will run the model: it learns what lies in memory meanwhile."""
        held = self._models.get(model)
        if held is not None and len(held.offsets) < sum(map(bool, held.layer_bytes)):
            held.readers.add(partition)
            self._page_cache.read(model)
        else:
            self._page_cache.used(model)
        if held is None or len(told := held.told.get(partition, set())) == len(held.offsets):
            return
        new = {layer: offset for layer, offset in held.offsets.items() if layer not in told}
        told.update(new)
        frame = PlaceWeights(model, tuple(new), tuple(new.values()))
        held.hosts[partition].place(frame)

    def unloaded(self, model: str, partition: str) -> None:
        """A partition has it open no more; after the last one its memory is free."""
        held = self._models.get(model)
        if held is None or held.hosts.pop(partition, None) is None:
            return
        del held.told[partition]
        held.readers.discard(partition)
        waiting = self._waiting.get(model)
        if waiting is not None and waiting.partition == partition:
            self.cancel(model)
        if held.hosts:
            return
        del self._models[model]
        self._page_cache.forget(model)
        self._give(held.offsets)

    def lost(self, partition: str) -> None:
        """A partition is gone."""
        for model in list(self._models):
            self.unloaded(model, partition)

    def fetch(self, work: Fetch, done: Done) -> None:
        """Have layers copied.

        Raises:
            ValueError: that partition cannot bring that model by these steps.
        """
        held = self._models.get(work.model)
        partition = None if held is None else held.hosts.get(work.partition)
        if held is None or partition is None:
            raise ValueError(f"model {work.model} is not in partition '{work.partition}'")
        if work.model in self._copying or work.model in self._waiting:
            raise ValueError(f"weights of {work.model} are on their way already")
        steps, layers = len(work.plan.steps), len(held.layer_bytes)
        if steps != layers:
            raise ValueError(
                f"a plan of {steps} layers for {work.model}, which has {layers}: its profile is "
                f"not of this model; measure it again (interlace profile --layers --force)"
            )
        wanted = [index for index in work.plan.brought if index not in held.offsets]
        offsets = self._take(held.layer_bytes, wanted)
        copy = partial(self._copy, work, done, held, partition, offsets)
        end = partial(self._end, work, done, offsets, CANCELLED)
        self._waiting[work.model] = _WaitingFetch(partition.name, end)
        self._page_cache.read_ahead(work.model, copy)

    def _copy(
        self,
        work: Fetch,
        done: Done,
        held: _HeldWeights,
        partition: CpuPartition,
        offsets: Mapping[int, int],
    ) -> None:
        """There is room in the page cache for what is read."""
        del self._waiting[work.model]
        if not offsets:
            self._loop.call_soon(done, WorkFinished(work))
            return
        self._copying[work.model] = partition
        frame = CopyWeights(work.model, tuple(offsets), tuple(offsets.values()))
        partition.copy(frame, partial(self._copied, work, done, held, offsets))

    def cancel(self, model: str) -> None:
        """Nobody waits for its weights any more."""
        partition = self._copying.get(model)
        if partition is not None:
            partition.stop_copying(model)
        elif self._page_cache.gave_up(model):
            self._loop.call_soon(self._waiting.pop(model).end)

    def evict(self, work: Evict, done: Done) -> None:
        """Give memory back, once no batch reads it."""
        held = self._models.get(work.model)
        offsets = {} if held is None else held.offsets
        going = {layer: offsets.pop(layer) for layer in work.layers if layer in offsets}
        if held is None or not going:
            self._loop.call_soon(done, WorkFinished(work))
            return

        def left() -> None:
            self._give(going)
            done(WorkFinished(work))

        hosts = [
            (held.hosts[name], going) for name, told in held.told.items() if told & going.keys()
        ]
        for told in held.told.values():
            told.difference_update(going)
        self._leave(work.model, hosts, left)

    def _give_up_file(self, model: str, then: Callable[[], None]) -> None:
        """Have no worker hold pages of the model's file, once it is not on its way from there."""
        held = self._models.get(model)
        if held is None:
            self._loop.call_soon(then)
            return
        if model in self._copying:
            held.copied.append(partial(self._give_up_file, model, then))
            return
        layers = {layer for layer, nbytes in enumerate(held.layer_bytes) if nbytes}
        hosts = [(held.hosts[name], layers - held.told[name]) for name in sorted(held.readers)]
        held.readers.clear()
        self._leave(model, hosts, then)

    def close(self) -> None:
        """Give the memory back."""
        self._page_cache.close()
        self.arena.close()

    def _copied(
        self,
        work: Fetch,
        done: Done,
        held: _HeldWeights,
        offsets: Mapping[int, int],
        answer: WorkerAnswer | Failure,
    ) -> None:
        partition = self._copying.pop(work.model)
        for then in held.copied:
            self._loop.call_soon(then)
        held.copied.clear()
        copied = isinstance(answer, Copied) and not answer.failure
        told = held.told.get(partition.name)
        if copied and told is not None:
            held.offsets.update(offsets)
            told.update(offsets)
            self._page_cache.read(work.model)
            done(WorkFinished(work))
            return
        if isinstance(answer, Failure):
            self._loop.call_later(_DYING_S, self._give, offsets)
            done(WorkFinished(work, failure=replace(answer, innocent=True)))
            return
        detail = answer.failure if isinstance(answer, Copied) else ""
        ended = partial(self._end, work, done, offsets, detail)
        self._leave(work.model, [(partition, offsets)], ended)

    def _end(self, work: Fetch, done: Done, offsets: Mapping[int, int], detail: str) -> None:
        """The fetch did not come to its end, and nobody reads what it was to fill."""
        self._give(offsets)
        failure = Failure(
            f"weights of {work.model}: {detail or 'the model was unloaded meanwhile'}",
            innocent=not detail or detail == CANCELLED,
        )
        done(WorkFinished(work, failure=failure))

    def _leave(
        self,
        model: str,
        hosts: Sequence[tuple[CpuPartition, Iterable[int]]],
        then: Callable[[], None],
    ) -> None:
        """Have each worker read these layers in the file again, and go on when all do."""
        left = len(hosts)

        def answered(answer: WorkerAnswer | Failure) -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        if not hosts:
            self._loop.call_soon(then)
        for partition, layers in hosts:
            partition.evict(EvictWeights(model, tuple(layers)), answered)

    def _take(self, layer_bytes: tuple[int, ...], layers: list[int]) -> dict[int, int]:
        """Places for as many of these layers as find one, those that follow each other together."""
        offsets: dict[int, int] = {}
        for run in _runs([layer for layer in layers if layer_bytes[layer]]):
            sizes = [layer_bytes[layer] for layer in run]
            whole = self._place(sum(sizes))
            if whole is not None:
                offsets.update(zip(run, self._extents.split(whole, sizes), strict=True))
                continue
            for layer in run:
                offset = self._place(layer_bytes[layer])
                if offset is not None:
                    offsets[layer] = offset
        return offsets

    def _place(self, nbytes: int) -> int | None:
        """Whole pages begin at a page, so that they can be exchanged for a file's."""
        return self._extents.take(nbytes, 1 if nbytes % mmap.PAGESIZE else mmap.PAGESIZE)

    def _give(self, offsets: Mapping[int, int]) -> None:
        for offset in offsets.values():
            self._extents.give_back(offset)


def _runs(layers: list[int]) -> Iterable[list[int]]:
    if not layers:
        return
    run = [layers[0]]
    for before, layer in pairwise(layers):
        if layer != before + 1:
            yield run
            run = []
        run.append(layer)
    yield run
