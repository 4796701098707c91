"""What a process that holds a GPU works with, made in order and given back in reverse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final

from interlace.core.model import Model
from interlace.device.cuda.completion.flags import Flags
from interlace.device.cuda.completion.kinds import completions, usual
from interlace.device.cuda.engine.backend import Backend
from interlace.device.cuda.engine.loaded import LoadedModel, Shop
from interlace.device.cuda.engine.staging import InputRings
from interlace.device.cuda.engine.stopwatch import Stopwatch, graph_ms
from interlace.device.cuda.memory.budget import Budget
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.partitions.lanes import Lane, Lanes
from interlace.device.cuda.worker.lending import Borrowed
from interlace.device.cuda.worker.loader import Loader
from interlace.device.cuda.worker.models import Models
from interlace.device.cuda.worker.stager import Stager
from interlace.device.cuda.worker.wire import GpuSetup, KeeperSetup
from interlace.shm.arena import Arena, ArenaMap

#: Lanes of one process at most: two ladders of the largest GPU, and what plans add beside.
LANES_MAX: Final = 128


class Equipment:
    """The GPU as one process has it. ``outputs`` is the arena that replies refer to."""

    def __init__(self, setup: GpuSetup, note: Callable[[str], None]) -> None:
        """Start CUDA, lock the arenas, carve the lanes.

        Raises:
            CudaError: the GPU or its driver refused; what was made is given back.
            ValueError: an arena is gone.
        """
        self.note = note
        with ExitStack() as steps:
            backend = made_backend(setup.backend, setup.gpu, steps)
            driver = backend.driver
            self._mapped = MappedMemory(driver)
            steps.callback(self._mapped.close)
            self.lanes: Lanes = named(setup.lanes)(driver)
            steps.callback(self.lanes.close)
            self.outputs = Arena.adopt(setup.owner_pid, setup.arena)
            self.arenas = RegisteredArenas(driver, ArenaMap(setup.owner_pid), setup.owner_pid)
            steps.callback(self.arenas.close)
            self.arenas.add(self.outputs)
            for number in setup.arenas:
                self.arenas.register(number)
            self.completions = completions(
                _kind(setup.completion), driver, LANES_MAX, setup.rest_us
            )
            steps.callback(self.completions.close)
            self.stager = self._stager(backend, steps)
            borrowed = Borrowed(setup.lender, note)
            shop = self._shop(setup, backend, borrowed)
            self.models = Models(partial(LoadedModel, shop), borrowed.give_back)
            steps.callback(self.models.close)
            self.loader = Loader()
            steps.callback(self.loader.close)
            self._steps = steps.pop_all()

    def close(self) -> None:
        """Give everything back; nothing runs any more.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        self._steps.close()

    def _stager(self, backend: Backend, steps: ExitStack) -> Stager:
        lane = self.lanes.aside()
        flag = self.completions.flag(lane.index).device
        arenas, memory = self.arenas, self._mapped
        rings = InputRings(backend.driver, backend.kernels, memory, arenas, lane, flag)
        steps.callback(rings.close)
        return Stager(rings, lane, self.completions)

    def _shop(self, setup: GpuSetup, backend: Backend, borrowed: Borrowed) -> Shop:
        shop = Shop(
            backend,
            self._mapped,
            Budget(backend.driver),
            lambda index: self.completions.flag(index).device,
            self.note,
            stopwatch_of(backend),
            named(setup.opener),
        )
        return shop._replace(lent=borrowed.lent) if setup.lender else shop


def keepers_tools(
    setup: KeeperSetup, note: Callable[[str], None], steps: ExitStack
) -> tuple[Callable[[Model], LoadedModel], Lane]:
    """What opens models in a process that serves nobody, and the lane that they are tried on.

    Raises:
        CudaError: the GPU or its driver refused.
    """
    backend = made_backend(setup.backend, setup.gpu, steps)
    mapped = MappedMemory(backend.driver)
    steps.callback(mapped.close)
    lanes: Lanes = named(setup.lanes)(backend.driver)
    steps.callback(lanes.close)
    lane = lanes.carve("weights", 100)
    flags = Flags(backend.driver, lane.index + 1)
    steps.callback(flags.close)
    shop = Shop(
        backend,
        mapped,
        Budget(backend.driver),
        lambda index: flags.mapped(index).device,
        note,
        stopwatch_of(backend),
        named(setup.opener),
    )
    return partial(LoadedModel, shop), lane


def named(path: str) -> Any:
    """The function that ``module:function`` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def made_backend(maker: str, gpu: str, steps: ExitStack) -> Backend:
    """The backend that ``module:function`` makes; ``steps`` close it.

    Raises:
        CudaError: the GPU or its driver refused.
    """
    backend: Backend = named(maker)(gpu)
    steps.callback(backend.driver.close)
    steps.callback(backend.driver.unload_kernels, backend.kernels.module)
    return backend


def stopwatch_of(backend: Backend) -> Stopwatch | None:
    """How variants are timed; not at all where there is no GPU."""
    return None if backend.torch_device.startswith("cpu") else graph_ms


def _kind(name: str) -> Any:
    return name or usual()
