"""Models taken apart in this process: the time of each layer."""

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Final

from bench.fidelity.stand import cores
from bench.gpu.bench import Bench
from bench.gpu.devices import green_gpu, lacking
from bench.gpu.opened import stand
from bench.gpu.profiles import Kept, as_time_goes, keep
from bench.gpu.rows import Row, failed, seen, skipped
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.green_contexts import gpu as green
from interlace.device.cuda.lanes import Lanes
from interlace.profiling.cuda.examine import examine
from interlace.profiling.cuda.process import with_findings
from interlace.profiling.cuda.task import GpuTask

#: More than an L2 holds: 50 MiB on an H100.
_FLUSH_BYTES: Final = 128 << 20


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a model: copy, run, and run with the weights on the host, layer by layer."""
    why = lacking(bench, "green")
    if why:
        yield skipped("layers", why)
        return
    # Of the stand its models alone are used: this process holds the GPU itself.
    async with stand(bench, cores) as opened:
        with bench.backend() as backend, closing(green.make_lanes(backend.driver)) as lanes:
            for one in as_time_goes(bench, opened, "layers"):
                yield one if isinstance(one, Row) else _of(bench, backend, lanes, one)


def _of(bench: Bench, backend: CudaBackend, lanes: Lanes, one: Kept) -> Row:
    """The row of one model; what was found goes into the profile."""
    what = f"layers of {one.model.name}"
    task = GpuTask("", "", "", (one.model,), True, (), bench.size(_FLUSH_BYTES, 4096))
    try:
        found = examine(task, one.model, backend, lanes)
    except Exception as error:
        return failed(what, error)
    keep(bench, green_gpu(bench), one.model, lambda now: with_findings(now, found, {}))
    run_ms = sum(layer.run_ms for layer in found.layers)
    copy_ms = sum(layer.copy_ms for layer in found.layers)
    slower = sum(layer.run_host_ms for layer in found.layers)
    return seen(
        what,
        f"{len(found.layers)} layers: {copy_ms:.2f} ms to copy, {run_ms:.2f} ms to run, "
        f"{slower:.2f} ms with tables on the host and all else copied by each run",
        layers=len(found.layers), copy_ms=copy_ms, run_ms=run_ms, host_access_ms=slower,
        weights_bytes=sum(layer.weights_bytes for layer in found.layers),
    )  # fmt: skip
