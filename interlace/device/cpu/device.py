"""This machine's processor as a device: cores are its units, partitions are worker processes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from interlace.core.hardware import Gpu, Trait
from interlace.core.loading import HostLinks
from interlace.core.messages import (
    BatchWaits,
    CancelRun,
    CopyInputs,
    CreatePartition,
    Evict,
    Failure,
    Fetch,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    TierChanged,
    Unload,
    Work,
    WorkFinished,
)
from interlace.core.metric_change import MetricChange
from interlace.core.model import Description, Model
from interlace.core.request import PartialResponse
from interlace.device.base import Callees, DeviceEvent, Done
from interlace.device.cpu.describe import Describer
from interlace.device.cpu.input_rings import HostRings
from interlace.device.cpu.partition import CpuPartition
from interlace.device.cpu.settings import WORKER, CpuSettings
from interlace.device.cpu.weights import BudgetedWeights
from interlace.device.process.output_arena import HeldBatches
from interlace.device.process.spawner import ForkServerSpawner
from interlace.device.process.wire import Loaded
from interlace.formats.machine import processor_name
from interlace.shm.arena import Arena, ArenaMap


class CoreAllocator:
    """Counts how many partitions hold each core; they may overlap while plans change."""

    def __init__(self, cores: Sequence[int]) -> None:
        if not cores or len(set(cores)) != len(cores):
            raise ValueError(f"cores {list(cores)}: expected at least one, each once")
        self._holders = dict.fromkeys(cores, 0)
        total = len(cores)
        self._counts = {count * 100 // total: count for count in range(1, total + 1)}
        self._counts.pop(0, None)

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Whole cores as percentages, rounded down so that what fits in cores fits in percent."""
        return tuple(self._counts)

    def grant(self, share_pct: int, leaving: Collection[int] = ()) -> tuple[int, ...]:
        """The least-held cores for a share.

        ``leaving`` are cores of partitions that go soon, once for each: they count as free where
        others are as good.

        Raises:
            ValueError: no such share.
        """
        count = self._counts.get(share_pct)
        if count is None:
            raise ValueError(f"a share of {share_pct} %: expected one of {list(self._counts)}")
        going = Counter(leaving)
        order = sorted(
            self._holders,
            key=lambda core: (self._holders[core] - going[core], self._holders[core], core),
        )
        granted = tuple(sorted(order[:count]))
        for core in granted:
            self._holders[core] += 1
        return granted

    def give_back(self, cores: Sequence[int]) -> None:
        """Undo a grant."""
        for core in cores:
            self._holders[core] -= 1


def cpu_kind(cores: int) -> str:
    """The kind profiles are kept by: processor model and number of cores, as one word."""
    name = processor_name() or "unknown"
    noise = r"\((r|tm)\)|\bcpu\b|processor|@.*|\d+-core"
    words = re.findall(r"[a-z0-9]+", re.sub(noise, " ", name.lower()))
    return f"cpu-{'-'.join(words) or 'unknown'}-{cores}c"


_TRAITS: Final = frozenset({Trait.INPUT_POOL, Trait.GATHER_DMA, Trait.OVERLAPPED_REORGANISATION})

#: So many loads of a model in a row may be killed from outside before that is its own doing: it
#: needs more memory than there is.
_KILLED_LOADING: Final = 2


def cpu_gpu(settings: CpuSettings) -> Gpu:
    """The accelerator that a device of these settings is; nothing is started."""
    return Gpu(
        settings.id,
        cpu_kind(len(settings.cores)),
        len(settings.cores),
        settings.memory_bytes,
        CoreAllocator(settings.cores).shares_pct,
        _TRAITS,
        weights_bytes=settings.weights_bytes,
        links=HostLinks(takes_cores=True),
    )


def _unheard(event: DeviceEvent) -> None:
    """Nobody listens: a response is for nobody."""
    if isinstance(event, PartialResponse):
        event.release()


class CpuDevice:
    """A ``Device`` whose partitions are processes pinned to cores. One event loop owns it.

    Outputs are read through ``arenas``. Bytes never pass through here: only references do.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, arenas: ArenaMap, settings: CpuSettings
    ) -> None:
        self._loop = loop
        self._arenas = arenas
        self._settings = settings
        self._cores = CoreAllocator(settings.cores)
        self._models: dict[str, Model] = {}
        self._killed: Counter[str] = Counter()
        self._partitions: dict[str, CpuPartition] = {}
        self._held = HeldBatches(arenas)
        self._spawner = ForkServerSpawner(loop, WORKER)
        self._describer = Describer(loop, arenas, self._spawner, settings)
        self._pools = HostRings(loop, arenas)
        budget = settings.weights_bytes
        self._weights = (
            BudgetedWeights(loop, budget, self._tier_changed, settings.host_weights_bytes)
            if budget
            else None
        )
        self._on_event: Callable[[DeviceEvent], None] = _unheard
        self._open = True
        self._callees: Callees | None = None
        self._count: Callable[[Sequence[MetricChange]], None] = lambda changes: None
        self.gpu = cpu_gpu(settings)
        arenas.watchers.append(self._forget_arena)

    def serve_code(self, callees: Callees, count: Callable[[Sequence[MetricChange]], None]) -> None:
        """Let the code of models call others, and count metrics of its own."""
        self._callees = callees
        self._describer.serve_code(callees)
        self._count = count

    def code_ready(self, key: str) -> bool:
        """False if the code of a model says in a partition that it is not ready."""
        return not any(
            key in worker.unready
            for partition in self._partitions.values()
            for worker in partition.workers
        )

    def register(self, model: Model) -> None:
        self._models[model.key] = model
        self._spawner.preload(self._settings.preload.get(model.format, ()))

    def forget(self, key: str) -> None:
        self._models.pop(key, None)
        self._killed.pop(key, None)
        self._pools.forget(key)

    def cancel_run(self, work: CancelRun) -> None:
        partition = self._partitions.get(work.partition)
        if partition is not None:
            for worker in partition.workers:
                worker.cancel(work)

    def cancel_fetch(self, model: str) -> None:
        if self._weights is not None:
            self._weights.cancel(model)

    def on_event(self, heard: Callable[[DeviceEvent], None]) -> None:
        self._on_event = heard

    def do(self, work: Work, done: Done) -> None:
        try:
            self._do(work, done)
        except (ValueError, OSError) as error:
            self._loop.call_soon(done, WorkFinished(work, failure=Failure(str(error))))

    def free(self, batch: int) -> None:
        self._held.free(batch)

    def workers(self) -> dict[str, int]:
        """Process id of each partition's worker, once it is forked."""
        pids = {name: partition.link.pid for name, partition in self._partitions.items()}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def end(self, partition: str, cause: str, blamed: tuple[str, ...]) -> None:
        """Have a partition's worker replaced, for a reason; it counts against these models."""
        found = self._partitions.get(partition)
        if found is not None:
            found.blamed = blamed
            found.link.kill(cause, innocent=True)

    @property
    def fork_server_pid(self) -> int | None:
        """Process id of the fork server, while there is one."""
        return self._spawner.pid

    async def describe(self, model: Model, limit_s: float = 120.0) -> Description:
        """A model's signature and memory, read by loading it in a process of its own.

        Raises:
            ServeError: it does not load, or not within ``limit_s``; in the words of its format.
        """
        return await self._describer.describe(model, limit_s)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._arenas.watchers.remove(self._forget_arena)
        self._describer.close()
        for partition in list(self._partitions.values()):
            # Its models may have an end of their own; the fork server kills what is busy.
            partition.link.close("the device is closed", kill=self._spawner.pid is None)
        if self._weights is not None:
            self._weights.close()
        self._pools.close()
        self._spawner.close()

    def _forget_arena(self, number: int) -> None:
        for partition in self._partitions.values():
            for worker in partition.workers:
                worker.forget_arena(number)

    def _do(self, work: Work, done: Done) -> None:
        if isinstance(work, CreatePartition):
            self._carve(work, done)
            return
        if not self._open:
            raise ValueError(f"{self.gpu.id} is closed")
        if isinstance(work, CopyInputs):
            self._pools.stage(work, done)
            return
        if isinstance(work, Fetch | Evict):
            self._move(work, done)
            return
        partition = self._partitions.get(work.partition)
        if partition is None:
            raise ValueError(f"no partition '{work.partition}' on {self.gpu.id}")
        if partition.releasing:
            raise ValueError(f"partition '{work.partition}' is being released")
        if isinstance(work, Run):
            if self._weights is not None:
                self._weights.before_batch(work.batch.model, work.partition)
            worker = self._worker_of(partition, work.batch.model)
            worker.run(work, self._pools.window(work.batch), done)
        elif isinstance(work, Load):
            model = self._models.get(work.model)
            if model is None:
                raise ValueError(f"model {work.model} is not registered with {self.gpu.id}")
            spared = self._killed[work.model] < _KILLED_LOADING
            self._enter(partition, model).load(
                work, model, partial(self._loaded, done), spared, partial(self._weighed, work)
            )
        elif isinstance(work, Unload):
            self._worker_of(partition, work.model).unload(work, partial(self._unloaded, done))
        else:
            assert isinstance(work, ReleasePartition)
            partition.release(work, done)

    def _move(self, work: Fetch | Evict, done: Done) -> None:
        if self._weights is None:
            raise ValueError(f"{self.gpu.id} has no budget for weights")
        if isinstance(work, Evict):
            self._weights.evict(work, done)
        else:
            self._weights.fetch(work, done)

    def _weighed(self, work: Load, loaded: Loaded) -> None:
        partition = self._partitions.get(work.partition)
        if self._weights is not None and partition is not None:
            self._weights.loaded(work.model, partition, loaded)

    def _tier_changed(self, model: str, on_disk: bool) -> None:
        self._on_event(TierChanged(self.gpu.id, model, on_disk))

    def _waits(self, partition: str, batch: int, joins: int) -> None:
        self._on_event(BatchWaits(self.gpu.id, partition, batch, joins))

    def _responded(self, response: PartialResponse) -> None:
        self._on_event(response)

    def _unloaded(self, done: Done, finished: WorkFinished) -> None:
        assert isinstance(finished.work, Unload)
        if self._weights is not None:
            self._weights.unloaded(finished.work.model, finished.work.partition)
        done(finished)

    def _carve(self, work: CreatePartition, done: Done) -> None:
        if not self._open:
            raise ValueError(f"{self.gpu.id} is closed")
        if work.partition in self._partitions:
            raise ValueError(f"partition '{work.partition}' of {self.gpu.id} exists already")
        going = [self._partitions[name] for name in work.leaving if name in self._partitions]
        cores = self._cores.grant(work.share_pct, [core for one in going for core in one.cores])
        try:
            partition = self._worker(work, cores)
        except OSError:
            self._cores.give_back(cores)
            raise
        self._partitions[work.partition] = partition
        try:
            partition.carve(work, self._spawner, partial(self._carved, partition, done))
        except OSError:
            self._drop(partition)
            raise

    def _worker(self, work: CreatePartition, cores: tuple[int, ...]) -> CpuPartition:
        """A worker that is not started. Raises OSError."""
        arena = Arena.create(self._settings.arena_bytes)
        weights = 0 if self._weights is None else self._weights.arena.number
        setup = self._settings.setup(
            work.partition, cores, arena, work.background, work.quiet, weights
        )
        made = CpuPartition(
            self._loop,
            setup,
            arena,
            self._arenas,
            self._held,
            self._settings.limits,
            self._ended,
            self._responded,
        )
        made.calls.callees = self._callees
        made.on_waits = self._waits
        if not work.quiet:  # what is measured is nobody's request
            made.on_metrics = self._count
        return made

    def _worker_of(self, partition: CpuPartition, model: str) -> CpuPartition:
        """The worker of a partition in the environment of a model."""
        known = self._models.get(model)
        return partition.inner.get(known.environment if known else "", partition)

    def _enter(self, partition: CpuPartition, model: Model) -> CpuPartition:
        """As ``_worker_of``; started, if it is not there. Raises OSError."""
        environment = model.environment
        if environment and environment not in partition.inner:
            own = partition.setup
            work = CreatePartition(self.gpu.id, own.name, 0, (), own.background, own.quiet)
            made = partition.inner[environment] = self._worker(work, partition.cores)
            made.carve(work, self._spawner.within(environment), lambda finished: None)
        return self._worker_of(partition, model.key)

    def _carved(self, partition: CpuPartition, done: Done, finished: WorkFinished) -> None:
        if finished.failure is not None and not finished.failure.fatal:
            self._drop(partition)  # its worker lives, but could not be set up
            partition.link.close(finished.failure.detail)
        done(finished)

    def _loaded(self, done: Done, finished: WorkFinished) -> None:
        """Count loads of a model that were killed from outside, one after the other."""
        assert isinstance(finished.work, Load)
        if finished.failure is None:
            self._killed.pop(finished.work.model, None)
        elif finished.failure.fatal and finished.failure.innocent:
            self._killed[finished.work.model] += 1
        done(finished)

    def _ended(self, worker: CpuPartition, cause: str) -> None:
        partition = self._partitions.get(worker.name)
        if partition is None or worker is not partition:
            worker.outputs.retire()
            if partition is not None and worker in partition.inner.values():
                partition.link.kill(cause, innocent=True)  # they live and die together
            return
        self._drop(partition)
        if partition.releasing:
            partition.finish_release()
        elif self._open:
            self._on_event(PartitionLost(self.gpu.id, partition.name, cause, partition.blamed))

    def _drop(self, partition: CpuPartition) -> None:
        if self._partitions.get(partition.name) is not partition:
            return
        del self._partitions[partition.name]
        self._cores.give_back(partition.cores)
        partition.outputs.retire()
        for worker in partition.inner.values():
            worker.link.close("its partition ended", kill=self._open and not partition.releasing)
        if self._weights is not None:
            self._weights.lost(partition.name)
