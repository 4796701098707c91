"""Power and energy of the models, and the DRAM that the GPU's counters say they use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import maker, parted
from bench.gpu.nvml import open_nvml
from bench.gpu.opened import stand
from bench.gpu.profiles import Kept, as_time_goes, keep
from bench.gpu.rows import Row, failed, flow, seen, skipped
from interlace.profiling.cuda.nvml import Nvml, NvmlError
from interlace.profiling.cuda.power import PowerMeter, PowerSample, idle_w, measure_power

PART = "power"


def rows(bench: Bench) -> Iterator[Row]:
    """A row a model: its largest batch back to back, on all SMs and on half of them."""
    try:
        nvml = open_nvml(bench)
    except NvmlError as error:
        yield skipped(PART, str(error))
        return
    with closing(nvml):
        yield from flow(_rows(bench, nvml))


async def _rows(bench: Bench, nvml: Nvml) -> AsyncIterator[Row]:
    async with stand(bench, maker(bench, parted(bench), keep=True)) as opened:
        meter = PowerMeter(opened.rig, nvml)
        try:
            idle = await idle_w(opened.rig, meter, bench.size(1.0, 0.05))
        except NvmlError as error:  # this GPU does not count its energy
            yield skipped(PART, str(error))
            return
        for one in as_time_goes(bench, opened, PART):
            yield one if isinstance(one, Row) else await _of(bench, opened, meter, one, idle)


async def _of(bench: Bench, opened: Stand, meter: PowerMeter, one: Kept, idle: float) -> Row:
    """The row of one model; its power goes into the profile."""
    what, gpu = f"{PART} of {one.model.name}", opened.device.gpu
    most = max(batch for batch, _ in one.profile.points)
    points = {share: (most,) for share in (gpu.shares_pct[-1], half_pct(gpu))}
    try:
        found = await measure_power(
            opened.rig, meter, one.model, points, idle, bench.size(0.6, 0.05)
        )
    except Exception as error:
        return failed(what, error)
    draws = {key: each.draw for key, each in found.items()}
    keep(bench, gpu, one.model, lambda now: replace(now, draws={**now.draws, **draws}))
    return _row(what, found, (most, gpu.shares_pct[-1]))


def _row(what: str, found: Mapping[tuple[int, int], PowerSample], most: tuple[int, int]) -> Row:
    one = found[most].draw
    return seen(
        what,
        f"{one.power_w:.0f} W ({one.idle_w:.0f} idle), {1000 * one.request_j:.1f} mJ a request",
        idle_w=one.idle_w,
        points=[
            {
                "batch": batch,
                "share_pct": share,
                "power_w": each.draw.power_w,
                "rows_per_s": each.draw.rows_per_s,
                "dram": each.counters.dram,
            }
            for (batch, share), each in found.items()
        ],
    )
