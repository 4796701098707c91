"""Starts the process that measures on a GPU, and puts its findings into profiles."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from interlace.core.hardware import Gpu
from interlace.core.profile import Profile
from interlace.profiling.corun import corun_share_pct
from interlace.profiling.cuda.readers import pressure
from interlace.profiling.cuda.task import GpuFindings, GpuTask, ReaderPlacement
from interlace.profiling.rig import MeasureError

_MODULE = "interlace.profiling.cuda.process_main"


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


async def run_gpu_task(
    task: GpuTask, environment: Mapping[str, str], timeout_s: float = 600.0
) -> list[GpuFindings]:
    """The findings of all models; those after a fault of the GPU are missing.

    Raises:
        MeasureError: the process did not start, or did not end in time.
    """
    with TemporaryDirectory(prefix="interlace-measure-") as folder:
        asked, answered = Path(folder, "task.json"), Path(folder, "findings.jsonl")
        asked.write_bytes(msgspec.json.encode(task))
        # `env` sets what CUDA reads at its start beside what this process has.
        words = ["env", *(f"{name}={value}" for name, value in environment.items())]
        words += [sys.executable, "-m", _MODULE, str(asked), str(answered)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stderr=pipe, stdout=pipe)
        try:
            _, errors = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise MeasureError(f"taking models apart did not end in {timeout_s:g} s") from None
        found = _read(answered)
        if not found:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise MeasureError(f"models could not be taken apart: {lines[-1]}")
        return found


def with_findings(
    profile: Profile, found: GpuFindings, dram: Mapping[tuple[int, int], float]
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
    return replace(profile, layers=layers, strains=strains, pressure=pressures)


def _read(file: Path) -> list[GpuFindings]:
    lines: Iterable[bytes] = file.read_bytes().splitlines() if file.exists() else ()
    return [msgspec.json.decode(line, type=GpuFindings) for line in lines]
