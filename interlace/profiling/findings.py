"""What taking a model apart found, and the process of its own in which that is done."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from interlace.core.profile import LayerProfile, MemoryContention
from interlace.profiling.rig import MeasureError


class BatchStrains(msgspec.Struct, frozen=True):
    """One batch at one share beside readers."""

    batch: int
    share_pct: int
    strains: tuple[MemoryContention, ...]


class PartFindings(msgspec.Struct, frozen=True):
    """What was found of one model, or why nothing was; ``cold_ms`` is a cold start as planned."""

    model: str
    layers: tuple[LayerProfile, ...] = ()
    strains: tuple[BatchStrains, ...] = ()
    error: str = ""
    cold_ms: float = 0.0


async def take_apart(
    module: str, task: msgspec.Struct, environment: Mapping[str, str], timeout_s: float = 600.0
) -> list[PartFindings]:
    """The findings of all models of a task; those after a fault of the device are missing.

    ``module`` runs as a process: it reads the task's file and writes a line a model.

    Raises:
        MeasureError: the process did not start, or did not end in time.
    """
    with TemporaryDirectory(prefix="interlace-measure-") as folder:
        asked, answered = Path(folder, "task.json"), Path(folder, "findings.jsonl")
        asked.write_bytes(msgspec.json.encode(task))
        # `env` sets what CUDA reads at its start beside what this process has.
        # It imports what this process does: nothing that a folder where it was started looks like.
        settings = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
        words = ["env", *(f"{name}={value}" for name, value in settings.items())]
        words += [sys.executable, "-P", "-m", module, str(asked), str(answered)]
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


def _read(file: Path) -> list[PartFindings]:
    lines: Iterable[bytes] = file.read_bytes().splitlines() if file.exists() else ()
    return [msgspec.json.decode(line, type=PartFindings) for line in lines]
