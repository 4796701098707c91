"""In which order a sweep loads a model at the shares of a device, and how it is let go of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from interlace.core.hardware import Gpu, Trait
from interlace.core.model import Model
from interlace.profiling.rig import MeasureError, PartitionLostError, Rig, TimedWork


class ShareVisit(NamedTuple):
    """One load: the share, the batch sizes to prepare, and whether its points are measured."""

    share_pct: int
    batches: tuple[int, ...]
    measured: bool = True


def share_visits(
    gpu: Gpu, sizes: Sequence[int], largest: Callable[[], int]
) -> Iterator[ShareVisit]:
    """The loads of a sweep over batches of these sizes, ascending.

    The largest share is measured first: if a model fails, it fails before the slow points. The
    first load is bare and the second ready for a large batch: the difference is what the model
    needs to run. Where batches run in graphs, every size is prepared at every share, so that no
    point is measured in a larger graph than its own. Elsewhere ``largest`` says, after the first
    share, which size is worth preparing.
    """
    first, *others = reversed(gpu.shares_pct)
    if Trait.GRAPHS in gpu.traits:
        yield ShareVisit(gpu.shares_pct[0], tuple(sizes[:1]), False)
        for share_pct in (first, *others):
            yield ShareVisit(share_pct, tuple(sizes))
        return
    yield ShareVisit(first, ())
    for share_pct in others:
        yield ShareVisit(share_pct, (largest(),))
    if not others:
        yield ShareVisit(first, (largest(),), False)


class ModelResidence:
    """A model on its way over the shares; what it held and how long it took, in bytes and ms.

    Where partitions share what was opened, the model is loaded in the next partition before the
    last one lets go of it: only graphs are made anew.
    """

    def __init__(self, rig: Rig, model: Model, timeout_s: float) -> None:
        self.bare_bytes = 0
        self.ready_bytes = 0
        self.load_ms = 0.0  #: from nothing to being ready
        self._rig = rig
        self._model = model
        self._timeout_s = timeout_s
        self._graphs = Trait.GRAPHS in rig.gpu.traits
        self._held: str | None = None
        self._loads = 0

    @asynccontextmanager
    async def over_all(self) -> AsyncIterator[ModelResidence]:
        """What is held at the end is let go of, unless its partition died."""
        try:
            yield self
        except PartitionLostError:
            self._held = None
            raise
        finally:
            await self._leave()

    async def move(self, visit: ShareVisit) -> str:
        """Load it there, let go of it where it was, and return the partition.

        Raises:
            MeasureError: it does not load.
        """
        rig = self._rig
        partition = await rig.partition(visit.share_pct, self._timeout_s)
        if partition == self._held or not self._graphs:
            await self._leave()
        loaded = await self._load(partition, visit.batches)
        await self._leave()
        self._held = partition
        self._note(loaded.finished.resident_bytes, loaded.took_ms)
        return partition

    async def _load(self, partition: str, batches: tuple[int, ...]) -> TimedWork:
        try:
            return await self._rig.load(partition, self._model, batches, self._timeout_s)
        except MeasureError as error:
            if self._held is None or isinstance(error, PartitionLostError):
                raise
        # What was made at earlier shares may be what leaves no room: it goes with the last holder.
        await self._leave()
        return await self._rig.load(partition, self._model, batches, self._timeout_s)

    async def _leave(self) -> None:
        held, self._held = self._held, None
        if held is not None and self._rig.has(held):
            await self._rig.unload(held, self._model, self._timeout_s)

    def _note(self, resident_bytes: int, took_ms: float) -> None:
        """With graphs later loads count what earlier ones left on their partitions: two are enough.

        There the first load made one graph only, and the second adds the others.
        """
        self._loads += 1
        if self._loads == 1:
            self.bare_bytes, self.load_ms = resident_bytes, took_ms
        elif self._loads == 2 or not self._graphs:
            self.ready_bytes = max(self.ready_bytes, resident_bytes)
            self.load_ms += took_ms if self._graphs else 0.0
