"""Models taken apart in this process: their layers, and readers of L2 and DRAM beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Final

from bench.fidelity.stand import cores
from bench.gpu.bench import Bench
from bench.gpu.devices import green_gpu, lacking
from bench.gpu.opened import stand
from bench.gpu.profiles import Kept, as_time_goes, keep
from bench.gpu.rows import Row, failed, flow, seen, skipped
from interlace.core.hardware import Gpu
from interlace.core.profile import LayerProfile
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.green_contexts import gpu as green
from interlace.device.cuda.lanes import Lanes
from interlace.profiling.cuda.examine import examine
from interlace.profiling.cuda.process import reader_placements, with_findings
from interlace.profiling.cuda.task import GpuTask, ReaderPlacement
from interlace.profiling.findings import PartFindings

#: More than an L2 holds: 50 MiB on an H100.
_FLUSH_BYTES: Final = 128 << 20


def layers(bench: Bench) -> Iterator[Row]:
    """A row a model: copy, run, and run with the weights on the host, layer by layer."""
    yield from flow(_rows(bench, "layers", (None,)))


def pressure(bench: Bench) -> Iterator[Row]:
    """A row a model and share: what readers lose beside it, and what it suffers from them."""
    yield from flow(_rows(bench, "pressure", _in_order(green_gpu(bench))))


def _in_order(gpu: Gpu) -> tuple[ReaderPlacement, ...]:
    """Half of the GPU first, for all models: where most plans have them."""
    return tuple(sorted(reader_placements(gpu), key=lambda one: abs(one.share_pct - 50)))


async def _rows(
    bench: Bench, what: str, wanted: tuple[ReaderPlacement | None, ...]
) -> AsyncIterator[Row]:
    why = lacking(bench, "green")
    if why:
        yield skipped(what, why)
        return
    # Of the stand its models alone are used: this process holds the GPU itself.
    async with stand(bench, cores) as opened:
        with bench.backend() as backend, closing(green.make_lanes(backend.driver)) as lanes:
            for place in wanted:
                for one in as_time_goes(bench, opened, _words(what, place)):
                    yield one if isinstance(one, Row) else _of(bench, backend, lanes, one, place)


def _words(what: str, place: ReaderPlacement | None) -> str:
    return what if place is None else f"{what} at {place.share_pct} %"


def _of(
    bench: Bench, backend: CudaBackend, lanes: Lanes, one: Kept, place: ReaderPlacement | None
) -> Row:
    """The row of one model; what was found goes into the profile."""
    what = f"{_words('layers' if place is None else 'pressure', place)} of {one.model.name}"
    stands = () if place is None else (place,)
    task = GpuTask("", "", "", (one.model,), place is None, stands, bench.size(_FLUSH_BYTES, 4096))
    try:
        found = examine(task, one.model, backend, lanes)
    except Exception as error:
        return failed(what, error)
    dram = counted(bench, one.model.name)
    keep(bench, green_gpu(bench), one.model, lambda now: with_findings(now, found, dram))
    return _layers_row(what, found.layers) if place is None else _pressure_row(what, found)


def counted(bench: Bench, name: str) -> dict[tuple[int, int], float]:
    """DRAM that the GPU itself counted in the part `power`, by batch and share."""
    points = ((bench.findings("power") or {}).get(f"power of {name}") or {}).get("points", [])
    return {
        (one["batch"], one["share_pct"]): one["dram"]
        for one in points
        if isinstance(one["dram"], float)
    }


def _layers_row(what: str, found: tuple[LayerProfile, ...]) -> Row:
    run_ms = sum(one.run_ms for one in found)
    copy_ms = sum(one.copy_ms for one in found)
    slower = sum(one.run_host_ms for one in found)
    return seen(
        what,
        f"{len(found)} layers: {copy_ms:.2f} ms to copy, {run_ms:.2f} ms to run, {slower:.2f} ms "
        f"with all weights on the host",
        layers=len(found), copy_ms=copy_ms, run_ms=run_ms, host_access_ms=slower,
        weights_bytes=sum(one.weights_bytes for one in found),
    )  # fmt: skip


def _pressure_row(what: str, found: PartFindings) -> Row:
    strains = [
        (at.batch, one.what, one.taken, one.slowdown) for at in found.strains for one in at.strains
    ]
    words = [
        f"{batch} rows: {kind} {100 * taken:.0f} % used, slowed {slower:.2f}"
        for batch, kind, taken, slower in strains
    ]
    return seen(what, "; ".join(words) or "no reader stood beside it", strains=strains)
