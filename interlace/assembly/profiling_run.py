"""A repository's models measured on a device made for the purpose."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from interlace.assembly.accelerators import Accelerators
from interlace.assembly.extra_profiling import ExtraProfiling
from interlace.assembly.model_folders import drafts, find_models
from interlace.control.model_preparer import ModelPreparer
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Model
from interlace.profiling.corun import CoRun
from interlace.profiling.extra_metrics import ExtraMetrics
from interlace.profiling.fill import FillResult, fill
from interlace.profiling.progress import OnSweepStep, no_progress
from interlace.profiling.rig import Rig
from interlace.profiling.store import ProfileStore
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

_ARENA_BYTES = 1 << 30  # address space; memory is taken as inputs are written


@dataclass(frozen=True, slots=True)
class ProfilingTask:
    """What is measured: all models of ``root`` or the named ones, on these accelerators."""

    root: Path
    names: tuple[str, ...]
    where: Accelerators
    folder: Path
    force: bool
    wanted: ExtraMetrics


class Findings(NamedTuple):
    """The models that open, their profiles, what was seen side by side, and what failed."""

    models: list[Model]
    filled: FillResult
    seen: list[CoRun]
    failures: list[str]


async def measure(task: ProfilingTask, on_step: OnSweepStep = no_progress) -> Findings:
    """The models that open, and what was measured; ``on_step`` hears of each point before it is.

    Raises:
        RepositoryError: there is no such repository.
        UserError: it does not hold what is named.
    """
    loop = asyncio.get_running_loop()
    found = find_models(task.root, task.names)
    arena, arenas = Arena.create(_ARENA_BYTES), ArenaMap(os.getpid())
    arenas.add(arena)
    devices = task.where.make(loop, arenas, (arena.number,))
    rig = Rig(devices.all[0], WallClock(loop), arena)
    store = ProfileStore(task.folder)
    preparation = ModelPreparer(task.root, devices, rig, store)
    models: list[Model] = []
    failures: list[str] = []
    try:
        for draft in drafts(task.root, found, failures):
            try:
                models.append(await preparation.open(draft, generation=0))
            except (RepositoryError, ServeError) as error:
                failures.append(f"{draft.name}: {error}")
                continue
            devices.register(models[-1])
        filled = await fill(rig, models, store, progress=on_step, force=task.force)
        further = ExtraProfiling(task.wanted, task.where, rig, store)
        seen = await further.measure(models, filled.profiles)
        failures += [*further.failures, *filled.failures.values()]
        return Findings(models, filled, seen, failures)
    finally:
        await rig.close()
        devices.close()
        arenas.close()
        arena.close()
