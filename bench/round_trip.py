"""Round trip of a batch through a worker: main process, worker, and back.

With a model that returns what it gets, what is left is the cost of the device itself.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Annotated

from bench.harness import Report, Row, main, percentile
from interlace.core.messages import CreatePartition, Load, Run, Work, WorkFinished
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Batch, Request
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec
from interlace.device.cpu.device import CpuDevice
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.memory import process_memory
from interlace.formats.runner import Array
from interlace.shm.arena import Arena, ArenaMap


async def round_trip(
    *,
    one_core: Annotated[bool, "both processes on one core"] = False,
    rows: Annotated[int, "requests in a batch"] = 1,
    nbytes: Annotated[int, "bytes of a request"] = 64,
    trips: Annotated[int, "batches"] = 5000,
) -> Report:
    """Latency of batches, one after the other, and what a partition takes."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores[:1])
    arena, arenas = Arena.create(1 << 28), ArenaMap(os.getpid())
    arenas.add(arena)
    settings = CpuSettings(
        cores[:1] if one_core else cores[-1:],
        1 << 30,
        preload={},
        opener="bench.round_trip:open_identity",
    )
    device = CpuDevice(asyncio.get_running_loop(), arenas, settings)
    found: list[Row] = []
    try:
        for what, name in (("the first partition", "first"), ("another", "p0")):
            began_s = time.perf_counter()
            await carry_out(device, CreatePartition("cpu0", name, 100))
            took_ms = 1e3 * (time.perf_counter() - began_s)
            found.append(Row(f"until {what} stands", None, took_ms, " ms"))
        model = identity(nbytes)
        device.register(model)
        await carry_out(device, Load("cpu0", "p0", model.key))
        requests = tuple(request(model, arena, at, nbytes) for at in range(rows))
        for count in (min(200, trips), trips):
            taken = Trips(device, requests, count)
            cpu_s = time.process_time()
            taken.start()
            await taken.done
        each_us = (time.process_time() - cpu_s) / trips * 1e6
        for what, us in (("round trip", taken.us), ("in the worker's phases", taken.phases_us)):
            for part in (50, 99):
                found.append(Row(f"{what}, p{part}", None, percentile(us, part) or 0.0, " us"))
        found.append(Row("main process, CPU a batch", None, each_us, " us"))
        found.append(Row("main process, CPU a request", None, each_us / rows, " us"))
        for name, pid in device.workers().items():
            found.append(Row(f"{name}: Pss", None, process_memory(pid).pss_bytes / 1e6, " MB"))
    finally:
        device.close()
    return Report(found)


class Identity:
    """Returns each input under the name of the output of the same place."""

    resident_bytes = 0
    shared_bytes = 0
    warnings: tuple[str, ...] = ()
    cold = None

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        pairs = zip(signature.inputs, signature.outputs, strict=True)
        self._names = [(source.name, target.name) for source, target in pairs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {target: inputs[source] for source, target in self._names}

    def close(self) -> None:
        pass


def open_identity(model: Model, threads: int, weights_dir: str | None) -> Identity:
    """The ``open_model`` of this benchmark."""
    return Identity(model.signature)


def identity(nbytes: int) -> Model:
    dims = (nbytes,)
    signature = Signature(
        (TensorSpec("INPUT0", "UINT8", dims),), (TensorSpec("OUTPUT0", "UINT8", dims),), True, 1024
    )
    return Model("identity", 1, Format.FACTORY, "", "0", signature, ServiceTerms(10.0))


async def carry_out(device: CpuDevice, work: Work) -> WorkFinished:
    future: asyncio.Future[WorkFinished] = asyncio.get_running_loop().create_future()
    device.do(work, future.set_result)
    finished = await future
    assert finished.failure is None, finished.failure
    return finished


class Trips:
    """One batch after the other, as fast as they come back."""

    def __init__(self, device: CpuDevice, requests: tuple[Request, ...], count: int) -> None:
        self._device = device
        self._requests = requests
        self._left = count
        self.us: list[float] = []
        self.cpu_us: list[float] = []
        self.phases_us: list[float] = []
        self.done = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        batch = Batch(self._left, self._requests[0].model, self._requests, len(self._requests))
        self._began = time.perf_counter()
        self._device.do(Run("cpu0", "p0", batch), self._ended)

    def _ended(self, finished: WorkFinished) -> None:
        self.us.append((time.perf_counter() - self._began) * 1e6)
        timing = finished.timing
        self.phases_us.append((timing.input_ms + timing.infer_ms + timing.output_ms) * 1e3)
        assert finished.failure is None, finished.failure
        self._device.free(self._left)
        self._left -= 1
        if self._left:
            self.start()
        else:
            self.done.set_result(None)


def request(model: Model, arena: Arena, at: int, nbytes: int) -> Request:
    offset = arena.alloc(nbytes)
    assert offset is not None
    tensor = Tensor("INPUT0", "UINT8", (1, nbytes), Span(arena.number, offset, nbytes))
    return Request(at, model.key, 0.0, 1e9, 1, (), 0, (tensor,))


if __name__ == "__main__":
    main(round_trip)
