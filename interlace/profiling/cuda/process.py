"""Where readers stand beside a model on a GPU, and how findings go into its profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.core.hardware import Gpu
from interlace.core.profile import Profile
from interlace.profiling.corun import corun_share_pct
from interlace.profiling.cuda.readers import pressure
from interlace.profiling.cuda.task import ReaderPlacement
from interlace.profiling.findings import PartFindings


def reader_placements(gpu: Gpu) -> tuple[ReaderPlacement, ...]:
    """A quarter, half and three quarters of the GPU, with the largest reader beside each.

    Beside half of it a small reader, too: how a model suffers from less. Nothing where no two
    partitions may stand side by side.
    """
    half = corun_share_pct(gpu, 2)
    if half is None:
        return ()
    quarter = max((share for share in gpu.shares_pct if share <= half // 2), default=half)
    most = _beside(gpu, quarter)
    return tuple(
        ReaderPlacement(
            share, tuple(sorted({_beside(gpu, share), *((quarter,) if share == half else ())}))
        )
        for share in sorted({quarter, half, most})
    )


def _beside(gpu: Gpu, share_pct: int) -> int:
    return max(other for other in gpu.shares_pct if gpu.legal(sorted((share_pct, other))))


def with_findings(
    profile: Profile, found: PartFindings, dram: Mapping[tuple[int, int], float]
) -> Profile:
    """The profile with what was found; what was not measured stays what it was.

    ``dram`` is what the GPU's own counters said, and goes before what readers say of DRAM; of the
    L2 there are readers alone.
    """
    strains, pressures = dict(profile.strains), dict(profile.pressure)
    for at in found.strains:
        key = at.batch, at.share_pct
        if at.strains:
            strains[key] = at.strains
        taken = pressure(at.strains)
        if taken is not None:
            pressures[key] = taken[0], dram.get(key, taken[1])
    layers = found.layers or profile.layers
    cold_ms = found.cold_ms if found.layers else profile.cold_ms
    return replace(profile, layers=layers, cold_ms=cold_ms, strains=strains, pressure=pressures)
