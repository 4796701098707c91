"""Round trip of a batch through a worker: main process, worker, and back.

Run from the repository root:  python bench/device/round_trip.py [--one-core] [--rows N] [--bytes N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable

import uvloop

from interlace.core.messages import CreatePartition, Load, Run, Work, WorkFinished
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Batch, Request
from interlace.core.tensor import Signature, Span, Tensor, TensorSpec
from interlace.device.cpu.device import CpuDevice
from interlace.device.cpu.settings import CpuSettings
from interlace.device.process.memory import process_memory
from interlace.shm.arena import Arena, ArenaMap


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


async def measure(options: argparse.Namespace) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    worker_core = cores[:1] if options.one_core else cores[-1:]
    os.sched_setaffinity(0, cores[:1])
    arena, arenas = Arena.create(1 << 28), ArenaMap(os.getpid())
    arenas.add(arena)
    here = f"{__name__ if __name__ != '__main__' else 'identity'}:open_identity"
    settings = CpuSettings(worker_core, 1 << 30, preload={}, opener=here)
    device = CpuDevice(asyncio.get_running_loop(), arenas, settings)
    try:
        began = time.perf_counter()
        await carry_out(device, CreatePartition("cpu0", "first", 100))
        print(f"first carve {1e3 * (time.perf_counter() - began):.1f} ms")
        began = time.perf_counter()
        await carry_out(device, CreatePartition("cpu0", "p0", 100))
        print(f"second carve {1e3 * (time.perf_counter() - began):.1f} ms")
        model = identity(options.bytes)
        device.register(model)
        await carry_out(device, Load("cpu0", "p0", model.key))
        requests = tuple(request(model, arena, at, options.bytes) for at in range(options.rows))
        for count in (200, options.trips):
            trips = Trips(device, requests, count)
            began, cpu = time.perf_counter(), time.process_time()
            trips.start()
            await trips.done
        report(trips.us, "round trip")
        report(trips.phases_us, "  of which in the worker's three phases")
        each = (time.process_time() - cpu) / options.trips * 1e6
        print(f"main process {each:.1f} us of CPU a batch, {each / options.rows:.2f} a request")
        for name, pid in device.workers().items():
            memory = process_memory(pid)
            print(f"{name}: Pss {memory.pss_bytes / 1e6:.1f} MB, Rss {memory.rss_bytes / 1e6:.1f}")
    finally:
        device.close()


def request(model: Model, arena: Arena, at: int, nbytes: int) -> Request:
    offset = arena.alloc(nbytes)
    assert offset is not None
    tensor = Tensor("INPUT0", "UINT8", (1, nbytes), Span(arena.number, offset, nbytes))
    return Request(at, model.key, 0.0, 1e9, 1, (), 0, (tensor,))


def report(us: list[float], what: str) -> None:
    cuts = statistics.quantiles(us, n=100)
    print(f"{what}: p50 {cuts[49]:.1f} us, p99 {cuts[98]:.1f} us, {len(us)} batches")


def main(run: Callable[[argparse.Namespace], None]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one-core", action="store_true", help="both processes on one core")
    parser.add_argument("--rows", type=int, default=1, help="requests in a batch")
    parser.add_argument("--bytes", type=int, default=64, help="bytes of a request")
    parser.add_argument("--trips", type=int, default=5000, help="batches")
    run(parser.parse_args())


if __name__ == "__main__":
    main(lambda options: uvloop.run(measure(options)))
