"""Models whose weights come and go, in this process: brought in every way, run once, looked at."""

import ctypes
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from bench.gpu.bench import Bench
from bench.gpu.devices import lacking
from interlace.core.model import Model
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import MappedBlock
from interlace.device.cuda.driver.flag_poller import LaneFlags
from interlace.device.cuda.green_contexts.lanes import make_lanes
from interlace.device.cuda.lanes import Lane, Lanes
from interlace.device.cuda.memory.budget import MemoryBudget
from interlace.device.cuda.memory.mapped import MappedMemory
from interlace.device.cuda.memory.weights_memory import WeightsMemory
from interlace.device.cuda.models.loaded import LoadContext, LoadedModel
from interlace.device.cuda.models.swapped_weights import LaneModel
from interlace.device.cuda.streams import StreamLanes
from interlace.device.cuda.worker.context import stopwatch_of
from interlace.formats import open_torch
from interlace.formats.arrays import sample_inputs

#: An input of this name is drawn, so that different rows of its table are looked up.
_TOKENS: Final = "input_ids"
_DRAWN_BELOW: Final = 1000
_LANES: Final = 129
_RUNS_WARM: Final = 3


class ColdStand:
    """A GPU's lanes and memory for weights; ``lane`` has all of it unless a part is asked for."""

    def __init__(self, backend: CudaBackend, lanes: Lanes, memory: WeightsMemory) -> None:
        self.backend = backend
        self.lanes = lanes
        self.memory = memory
        self.mapped = MappedMemory(backend.driver)
        self.flags = LaneFlags(backend.driver, _LANES)
        self.notes: list[str] = []
        self._sequence = 0

    @property
    def sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def context(self) -> LoadContext:
        def flag(index: int) -> int:
            return self.flags.mapped(index).device

        return LoadContext(
            self.backend, self.mapped, MemoryBudget(self.backend.driver), flag, self.notes.append,
            stopwatch_of(self.backend), open_torch, weights=self.memory,
        )  # fmt: skip

    def close(self) -> None:
        self.flags.close()
        self.mapped.close()


class ColdRun:
    """One model on a lane, run for one row. ``hosts`` are equal copies of its weights."""

    def __init__(self, stand: ColdStand, model: Model, lane: Lane) -> None:
        self.name = model.name
        self.served = LoadedModel(stand.context(), model, True)
        self.served.prepare(lane, (1,))
        assert self.served.cold is not None
        self.weights = self.served.cold
        self.all = frozenset(range(len(self.weights.layout.layers)))
        self.tables = frozenset(self.weights.tables)
        self.hosts: list[MappedBlock] = [self.weights.host]
        self._stand = stand
        self._lane = lane
        there = self.weights.lanes[lane]
        assert isinstance(there, LaneModel)
        self._there = there
        with ExitStack() as kept:
            self._prepare(kept)
            self._kept = kept.pop_all()

    @property
    def nbytes(self) -> int:
        """All weights that can be copied."""
        return self.weights.layout.nbytes

    def copied_bytes(self, layers: Collection[int]) -> int:
        return sum(self.weights.layout.layers[at].nbytes for at in layers if at in self.all)

    def multiply(self, count: int) -> None:
        """Have so many copies on the host, far more than any cache holds."""
        while len(self.hosts) < count:
            made = self._stand.memory.host.take(self.nbytes)
            ctypes.memmove(made.host, self.weights.host.host, self.nbytes)
            self.hosts.append(made)

    def forget(self, place: int = 0) -> None:
        """Nothing of it is on the GPU any more; it comes from that copy next."""
        self.weights.evict(list(self.weights.held))
        self.become(place, {})

    def become(self, place: int, held: dict[int, int]) -> None:
        """Stand for another model of the same make, with these of its layers there."""
        self.weights.host, self.weights.held = self.hosts[place % len(self.hosts)], held
        self._there.window.holder = None

    def run(self) -> None:
        """Launch, and wait for the end."""
        self.launch()
        self._stand.backend.driver.synchronize(self._lane.stream)

    def launch(self) -> int:
        """Begin; the turn of the batch."""
        targets = [one.device for one in self._targets]
        return self._program.launch(self._stand.sequence, 1, self._sources, targets)

    def warm_ms(self) -> float:
        began_s = time.perf_counter()
        self.run()
        return (time.perf_counter() - began_s) * 1000.0

    def gpu_ms(self) -> float:
        """A run by the GPU's clock: what another thread of this process does plays no part."""
        turn = self.launch()
        self._stand.backend.driver.synchronize(self._lane.stream)
        began_ns, ended_ns = self._program.times_ns(turn)
        return (ended_ns - began_ns) / 1e6

    @property
    def by_peer(self) -> dict[int, int]:
        """The layers of the second half of its bytes, each by the first peer."""
        before, half = 0, sum(one.nbytes for one in self.weights.layout.layers) // 2
        found: dict[int, int] = {}
        for at, layer in enumerate(self.weights.layout.layers):
            before += layer.nbytes
            if before > half:
                found[at] = 1
        return found

    def cold_ms(
        self,
        layers: Collection[int],
        overlapped: bool = True,
        place: int = 0,
        links: Mapping[int, int] = MappingProxyType({}),
    ) -> float:
        """From nothing there: these layers are copied, the others read over the link."""
        self.forget(place)
        driver, memory = self._stand.backend.driver, self.weights.memory
        driver.synchronize(memory.arrived())
        began_s = time.perf_counter()
        self.weights.fetch(layers, links)
        if not overlapped:
            driver.synchronize(memory.arrived())
        self.run()
        return (time.perf_counter() - began_s) * 1000.0

    def answer(self) -> bytes:
        """What the last run gave."""
        return b"".join(ctypes.string_at(one.host, one.nbytes) for one in self._targets)

    def close(self) -> None:
        self.weights.host = self.hosts[0]
        for made in self.hosts[1:]:
            self._stand.memory.host.give_back(made)
        self.served.close()
        self._kept.close()

    def _prepare(self, kept: ExitStack) -> None:
        served, mapped = self.served, self._stand.mapped
        values = {
            name: torch.from_numpy(array)
            for name, array in sample_inputs(served.model, served.signature, 1).items()
        }
        if _TOKENS in values:
            shape = values[_TOKENS].shape
            drawn = np.random.default_rng(0).integers(1, _DRAWN_BELOW, tuple(shape))
            values[_TOKENS].copy_(values[_TOKENS].new_tensor(drawn))
        shapes = {name: tuple(one.shape) for name, one in values.items()}
        self._program = served.program(self._lane, 1, shapes)
        self._sources: list[Sequence[int]] = []
        for slot in self._program.inputs:
            data = values[slot.name].contiguous()
            piece = mapped.take(max(8, data.nbytes))
            kept.callback(mapped.give_back, piece)
            ctypes.memmove(piece.host, data.data_ptr(), data.nbytes)
            self._sources.append([piece.device])
        self._targets: list[MappedBlock] = []
        for slot in self._program.outputs:
            piece = mapped.take(max(8, slot.row_bytes))
            kept.callback(mapped.give_back, piece)
            self._targets.append(MappedBlock(piece.host, piece.device, slot.row_bytes))
        for _ in range(_RUNS_WARM):
            self.run()


@contextmanager
def cold_stand(
    bench: Bench, backend: CudaBackend, budget_bytes: int, host_bytes: int, kind: str = "green"
) -> Iterator[ColdStand]:
    """A stand on lanes of that kind; on plain streams where green contexts do not work."""
    driver = backend.driver
    make = StreamLanes if kind == "streams" or lacking(bench, "green") else make_lanes
    with closing(make(driver)) as lanes, ExitStack() as steps:
        memory = WeightsMemory(driver, budget_bytes, host_bytes, peers=1)
        steps.callback(memory.close)
        made = ColdStand(backend, lanes, memory)
        steps.callback(made.close)
        yield made


@contextmanager
def cold_run(stand: ColdStand, model: Model, share_pct: int = 100) -> Iterator[ColdRun]:
    """The model on a lane of its own."""
    lane = stand.lanes.carve(model.name, share_pct)
    try:
        make = partial(ColdRun, stand, model, lane)
        with closing(stand.backend.threads.run(lane.green, make)) as made:
            yield made
    finally:
        stand.lanes.release(model.name)
