"""A repository's models measured on a device made for the purpose."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from interlace.cli.accelerators import Accelerators
from interlace.cli.folders import Say, drafts, find
from interlace.cli.further import Further
from interlace.cli.progressbar import SweepBar
from interlace.control.preparation import Preparation
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Model
from interlace.measure.corun import CoRun
from interlace.measure.fill import Filled, fill
from interlace.measure.further import Wanted
from interlace.measure.rig import Rig
from interlace.measure.store import ProfileStore
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

_ARENA_BYTES = 1 << 30  # address space; memory is taken as inputs are written


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured: all models of ``root`` or the named ones, on these accelerators."""

    root: Path
    names: tuple[str, ...]
    where: Accelerators
    folder: Path
    force: bool
    wanted: Wanted


class Findings(NamedTuple):
    """The models that open, their profiles, and what was seen of them side by side."""

    models: list[Model]
    filled: Filled
    seen: list[CoRun]


async def measure(task: Task, errors: Console, say: Say) -> Findings:
    """The models that open, and what was measured; those that do not are told through ``say``.

    Raises:
        RepositoryError: there is no such repository.
        CommandError: it does not hold what is named.
    """
    loop = asyncio.get_running_loop()
    found = find(task.root, task.names)
    arena, arenas = Arena.create(_ARENA_BYTES), ArenaMap(os.getpid())
    arenas.add(arena)
    devices = task.where.make(loop, arenas, (arena.number,), errors.print)
    rig = Rig(devices.all[0], WallClock(loop), arena)
    store = ProfileStore(task.folder, errors.print)
    preparation = Preparation(task.root, devices, rig, store)
    models: list[Model] = []
    try:
        for draft in drafts(task.root, found, say):
            try:
                models.append(await preparation.open(draft, generation=0))
            except (RepositoryError, ServeError) as error:
                say(f"{draft.name}: {error}")
                continue
            devices.register(models[-1])
        with SweepBar(errors) as bar:
            filled = await fill(rig, models, store, progress=bar, force=task.force)
        further = Further(task.wanted, task.where, rig, store, say)
        return Findings(models, filled, await further.measure(models, filled.profiles))
    finally:
        await rig.close()
        devices.close()
        arenas.close()
        arena.close()
