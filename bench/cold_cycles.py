"""Weights that come and go without pause on this machine's cores: what is left, who is disturbed.

A device with a budget and two partitions of one core each. In one, a model's weights are fetched
and evicted, back to back; in the other a neighbour runs, once alone and once beside that, in turns.
Told are the memory that is back after an eviction, what processes hold after the cycles over what
they held before, and the neighbour's p99 beside loads over alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

from bench.harness import Report, Row, main, spread
from interlace.assembly.machine import cpu_settings, drafts, find_models
from interlace.core.loading import LoadPlan, LoadStep, WeightPath
from interlace.core.messages import CreatePartition, Evict, Fetch, Load, Run, Work, WorkFinished
from interlace.core.model import Model
from interlace.core.quantile import quantile
from interlace.device.cpu.device import CpuDevice
from interlace.device.process.memory import process_memory
from interlace.formats.weights_file import WeightsFile
from interlace.profiling.samples import SampleInputs
from interlace.repository import complete
from interlace.shm.arena import Arena, ArenaMap

_BUDGET_BYTES = 256 << 20


def cold_cycles(
    models: Annotated[Path, "the repository"] = Path("models"),
    /,
    *,
    comes: Annotated[str, "whose weights come and go"] = "embedder",
    neighbour: Annotated[str, "who runs beside it"] = "cnn_small",
    seconds: Annotated[float, "of each turn"] = 3.0,
    turns: Annotated[int, "alone and beside loads"] = 5,
) -> Report:
    """Cycles a second, what is left after them, and the neighbour's p99 beside them over alone."""
    with TemporaryDirectory() as folder:
        return asyncio.run(_cycles(models, (comes, neighbour), folder, seconds, turns))


async def _cycles(
    root: Path, names: tuple[str, str], folder: str, seconds: float, turns: int
) -> Report:
    loop, arena = asyncio.get_running_loop(), Arena.create(1 << 28)
    arenas = ArenaMap(os.getpid())
    arenas.add(arena)
    settings = replace(cpu_settings(None), weights_dir=folder, weights_bytes=_BUDGET_BYTES)
    device = CpuDevice(loop, arenas, settings)
    try:
        models = [await _opened(device, root, name) for name in names]
        stand = _Stand(device, models[0], models[1], _layers(folder, models[0]))
        await stand.carve()
        inputs = SampleInputs(models[1], arena)
        await stand.neighbour(Run(device.gpu.id, "q", inputs.batch(0, 1)), 0.1)
        await stand.cycle()
        before = stand.held()
        ratios, alone_ms, beside_ms, cycles, took_s = [], [], [], 0, 0.0
        for number in range(turns):
            run = Run(device.gpu.id, "q", inputs.batch(1 + number, 1))
            alone_ms.append(quantile(sorted(await stand.neighbour(run, seconds)), 0.99))
            ended = asyncio.Event()
            loads = asyncio.ensure_future(stand.cycle_until(ended))
            began_s = perf_counter()
            beside_ms.append(quantile(sorted(await stand.neighbour(run, seconds)), 0.99))
            ended.set()
            await loads
            cycles, took_s = stand.cycles, took_s + perf_counter() - began_s
            ratios.append(beside_ms[-1] / alone_ms[-1])
        await stand.cycle()
        after = stand.held()
        over = spread(ratios)
        assert over is not None
        words = f"neighbour's p99 beside loads over alone ({over.least:.2f}-{over.greatest:.2f})"
        return Report(
            [
                Row(words, 1.05, over.median),
                Row("cycles", None, cycles),
                Row("cycles a second", None, cycles / took_s),
                Row("slowest eviction", 1000.0, stand.slowest_ms, " ms"),
                Row("memory held after over before", 1.0, after.nbytes / before.nbytes),
                Row("descriptors after less before", 0.0, after.descriptors - before.descriptors),
            ],
            figures={"alone_ms": alone_ms, "beside_ms": beside_ms},
        )
    finally:
        device.close()
        arenas.close()
        arena.close()


async def _opened(device: CpuDevice, root: Path, name: str) -> Model:
    draft = next(iter(drafts(root, find_models(root, (name,)), [])))
    described = await device.describe(draft.provisional())
    model = complete(draft, described.signature, 0)
    device.register(model)
    return model


def _layers(folder: str, model: Model) -> int:
    (path,) = Path(folder).glob(f"{model.digest}-*.safetensors")
    return 1 + len(WeightsFile(path).uses)


@dataclass(frozen=True, slots=True)
class _Held:
    """What all processes hold: memory of their own, and descriptors."""

    nbytes: int
    descriptors: int


class _Stand:
    """The partitions ``p``, where weights come and go, and ``q`` beside it."""

    def __init__(self, device: CpuDevice, comes: Model, neighbour: Model, layers: int) -> None:
        self._device = device
        self._comes = comes
        self._neighbour = neighbour
        steps = tuple(LoadStep(str(place), WeightPath.COPY) for place in range(layers))
        self._plan = LoadPlan(steps, False, 0.0, 0.0)
        self.cycles = 0
        self.slowest_ms = 0.0

    async def carve(self) -> None:
        gpu = self._device.gpu
        for name, model in (("p", self._comes), ("q", self._neighbour)):
            await self._do(CreatePartition(gpu.id, name, gpu.shares_pct[0]))
            await self._do(Load(gpu.id, name, model.key, (1,), model is self._comes))

    async def cycle(self) -> None:
        """All weights in, all out."""
        gpu, model = self._device.gpu.id, self._comes.key
        await self._do(Fetch(gpu, "p", model, self._plan))
        began_s = perf_counter()
        await self._do(Evict(gpu, model, tuple(range(len(self._plan.steps)))))
        self.slowest_ms = max(self.slowest_ms, 1000.0 * (perf_counter() - began_s))
        self.cycles += 1

    async def cycle_until(self, ended: asyncio.Event) -> None:
        """Cycles without pause."""
        while not ended.is_set():
            await self.cycle()

    async def neighbour(self, run: Run, seconds: float) -> list[float]:
        """Latencies of batches of the neighbour, back to back."""
        ends_s, taken = perf_counter() + seconds, []
        while (began_s := perf_counter()) < ends_s:
            await self._do(run)
            self._device.free(run.batch.id)
            taken.append(1000.0 * (perf_counter() - began_s))
        return taken

    def held(self) -> _Held:
        pids = [os.getpid(), *self._device.workers().values()]
        return _Held(
            sum(process_memory(pid).anonymous_bytes for pid in pids),
            sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        )

    async def _do(self, work: Work) -> None:
        ended: asyncio.Future[WorkFinished] = asyncio.get_running_loop().create_future()
        done: Callable[[WorkFinished], None] = ended.set_result
        self._device.do(work, done)
        failure = (await ended).failure
        assert failure is None, failure


if __name__ == "__main__":
    main(cold_cycles)
