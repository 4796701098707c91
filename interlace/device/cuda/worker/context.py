"""What a process that holds a GPU works with, made in order and given back in reverse."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, cast

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.backend.trials import library_threads, wait_refusal
from interlace.device.cuda.driver.api import Driver, MappedBlock
from interlace.device.cuda.driver.flag_poller import FlagPoller, LaneFlags
from interlace.device.cuda.lanes import Lane, Lanes, Stopwatch, graph_ms
from interlace.device.cuda.memory.budget import MemoryBudget
from interlace.device.cuda.memory.mapped import MappedMemory, PooledDriver
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.memory.staging import DeviceRings
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.loaded import LoadContext, LoadedModel
from interlace.device.cuda.worker.model_cache import LoaderThread, ModelCache
from interlace.device.cuda.worker.weight_fetcher import InputStager, WeightFetcher
from interlace.device.cuda.worker.weight_server import WeightBorrower
from interlace.device.cuda.worker.wire import GpuSetup
from interlace.shm.arena import Arena, ArenaMap

#: Lanes of one process at most: two ladders of the largest GPU, and what plans add beside.
LANES_MAX: Final = 128
#: Of the budget, and of the machine's memory: what is page-locked for weights before models come.
_HOST_TIMES: Final = 2
_HOST_PART: Final = 4


class GpuContext:
    """The GPU as one process has it. ``outputs`` is the arena that replies refer to.

    ``took_s`` says how long which step of starting took.
    """

    def __init__(self, setup: GpuSetup, note: Callable[[str], None]) -> None:
        """Start CUDA, lock the arenas, carve the lanes.

        Raises:
            CudaError: the GPU or its driver refused; what was made is given back.
            ValueError: an arena is gone.
            OSError: nothing compiles the loop that learns the ends of batches.
        """
        self.note = note
        self.took_s: tuple[tuple[str, float], ...] = ()
        self._lap_s = time.perf_counter()
        with ExitStack() as steps:
            plain = made_backend(setup.backend, setup.gpu, steps)
            self._lap("torch, CUDA and kernels")
            pool = PooledDriver(plain.driver)
            steps.callback(pool.close_slabs)
            driver = cast(Driver, pool)  # in all that is not memory it is the driver's
            backend = plain._replace(driver=driver)
            self._mapped = MappedMemory(driver)
            steps.callback(self._mapped.close)
            self.lanes: Lanes = resolve_name(setup.lanes)(driver)
            steps.callback(self.lanes.close)
            self._lap("lanes")
            threads = library_threads(setup.handle_context, backend, self.lanes, note)
            steps.callback(threads.close)
            self._backend = backend = backend._replace(threads=threads)
            self._lap("trial of libraries")
            self.outputs = Arena.adopt(setup.owner_pid, setup.arena)
            self.arenas = RegisteredArenas(driver, ArenaMap(setup.owner_pid), setup.owner_pid)
            steps.callback(self.arenas.close)
            self.arenas.add(self.outputs)
            for number in setup.arenas:
                self.arenas.register(number)
            self._lap("page-locked memory")
            self.completions = FlagPoller(driver, LANES_MAX + 1, setup.rest_us)
            steps.callback(self.completions.close)
            self.fetcher = WeightFetcher(
                driver, backend.kernels, self._mapped, self.completions, LANES_MAX
            )
            steps.callback(self.fetcher.close)
            self.stager = self._stager(backend, steps)
            self.models = self._models(setup, backend, pool, steps)
            self.loader = LoaderThread()
            steps.callback(self.loader.close)
            self._lap("completion, memory for weights")
            self._steps = steps.pop_all()

    def close(self) -> None:
        """Give everything back; nothing runs any more. Every step is tried."""
        self._steps.close()

    def _lap(self, step: str) -> None:
        """A step of starting has ended; the next one begins."""
        began_s, self._lap_s = self._lap_s, time.perf_counter()
        self.took_s += ((step, self._lap_s - began_s),)

    @property
    def worn(self) -> bool:
        """Whether the process should be restarted once it has no partitions."""
        return self._backend.capturer.worn

    def _models(
        self, setup: GpuSetup, backend: CudaBackend, pool: PooledDriver, steps: ExitStack
    ) -> ModelCache:
        borrowed = WeightBorrower(setup.lender, self.note)
        context = _load_context(setup, backend, self._mapped, self.completions.flag, self.note)
        context = context._replace(quiet=lambda: not self.completions.busy)
        if setup.lender:
            context = context._replace(lent=borrowed.lent)
        if setup.weights_bytes:
            driver = backend.driver
            # Page-locked at the start; more is when models need it.
            machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            host_bytes = min(_HOST_TIMES * setup.weights_bytes, machine_bytes // _HOST_PART)
            sizes = setup.weights_bytes, host_bytes
            memory = WeightsMemory(driver, *sizes, setup.peers, self.note)
            steps.callback(memory.close)
            why = wait_refusal(backend, self._mapped)
            if why:
                self.note(f"models whose weights come and go run without graphs: {why}")
            context = context._replace(weights=memory, cold_eager_because=why)
        opened, trim = partial(LoadedModel, context), partial(_trim, backend, pool)
        models = ModelCache(opened, borrowed.give_back, setup.keep_bytes, trim)
        steps.callback(models.close)
        return models

    def _stager(self, backend: CudaBackend, steps: ExitStack) -> InputStager:
        lane = self.lanes.aside()
        flag = self.completions.flag(lane.index).device
        arenas, memory = self.arenas, self._mapped
        rings = DeviceRings(backend.driver, backend.kernels, memory, arenas, lane, flag)
        steps.callback(rings.close)
        return InputStager(rings, lane, self.completions)


def weight_server_models(
    setup: GpuSetup, note: Callable[[str], None], steps: ExitStack
) -> tuple[ModelCache, Lane]:
    """The models of a process that only lends weights, and the lane that they are tried on."""
    backend = made_backend(setup.backend, setup.gpu, steps)
    mapped = MappedMemory(backend.driver)
    steps.callback(mapped.close)
    lanes: Lanes = resolve_name(setup.lanes)(backend.driver)
    steps.callback(lanes.close)
    lane = lanes.carve("weights", 100)
    flags = LaneFlags(backend.driver, lane.index + 1)
    steps.callback(flags.close)
    context = _load_context(setup, backend, mapped, flags.mapped, note)
    models = ModelCache(partial(LoadedModel, context), keep_bytes=setup.keep_bytes)
    steps.callback(models.close)
    return models, lane


def _load_context(
    setup: GpuSetup,
    backend: CudaBackend,
    memory: MappedMemory,
    flag: Callable[[int], MappedBlock],
    note: Callable[[str], None],
) -> LoadContext:
    """What models are loaded with where weights are not borrowed and no requests are served."""
    return LoadContext(
        backend,
        memory,
        MemoryBudget(backend.driver),
        lambda lane: flag(lane).device,
        note,
        stopwatch_of(backend),
        resolve_name(setup.opener),
        choices=Path(setup.choices) if setup.choices else None,
    )


def made_backend(maker: str, gpu: str, steps: ExitStack) -> CudaBackend:
    """The backend that ``module:function`` makes; ``steps`` close it."""
    backend: CudaBackend = resolve_name(maker)(gpu)
    steps.callback(backend.driver.close)
    steps.callback(backend.driver.unload_kernels, backend.kernels.module)
    return backend


def stopwatch_of(backend: CudaBackend) -> Stopwatch | None:
    """How variants are timed; not at all where there is no GPU."""
    return None if backend.torch_device.startswith("cpu") else graph_ms


def _trim(backend: CudaBackend, pool: PooledDriver) -> None:
    """Give the driver back what torch and the pool do not use."""
    backend.capturer.trim()
    pool.trim()
