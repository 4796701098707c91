"""`interlace profile`: a repository's models measured on a device made for the purpose."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from interlace.assembly.accelerators import Accelerators, WeightsFolder
from interlace.assembly.machine import drafts, find_models
from interlace.control.model_preparer import ModelPreparer
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Model, TrustedModels
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError
from interlace.device.cuda.green_contexts import atoms
from interlace.profiling.corun import CoRun, corun_path, save_coruns
from interlace.profiling.extra_metrics import (
    CoresTask,
    ExtraMetrics,
    GpuTask,
    PartsTask,
    reader_placements,
    side_by_side,
    with_parts,
)
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.store import FillResult, ProfileStore, fill
from interlace.profiling.sweep import QUICK, THOROUGH, OnSweepStep, no_progress, telling
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

#: A task, and the environment of the process that carries it out.
AskedParts = tuple[PartsTask, Mapping[str, str]]


def check(wanted: ExtraMetrics, where: Accelerators) -> None:
    """What is wanted can be had there.

    Raises:
        InputError: it takes a GPU, or one that is parted by green contexts.
    """
    if wanted.pressure and not where.settings:
        raise InputError("--pressure is of GPUs; these are cores")
    if wanted.pressure and where.settings[0].lanes != atoms.LANES:
        raise InputError("--pressure sets readers beside models: it takes --device green")


@dataclass(slots=True)
class ExtraProfiling:
    """The further measurements of one `interlace profile`; each finding is stored at once."""

    _wanted: ExtraMetrics
    _where: Accelerators
    _rig: Rig
    _store: ProfileStore
    failures: list[str] = field(default_factory=list)

    async def measure(self, models: Sequence[Model], profiles: dict[str, Profile]) -> list[CoRun]:
        """Put what is wanted into ``profiles``; what was seen side by side is the answer."""
        known = [model for model in models if model.key in profiles]
        seen: list[CoRun] = []
        if self._wanted.corun:
            seen = await side_by_side(self._rig, known, profiles, self.failures)
            self._keep_coruns(known, seen)
        if self._wanted.layers or self._wanted.pressure:
            await self._parts(known, profiles)
        return seen

    async def _parts(self, models: Sequence[Model], profiles: dict[str, Profile]) -> None:
        await self._rig.close()
        on_gpu = bool(self._where.settings)
        weights = WeightsFolder(self._where.cpu.weights_dir)
        try:
            asked = self._of_gpu(models) if on_gpu else self._of_cores(models, weights.folder)
            after = await with_parts(*asked, profiles, self.failures)
        except MeasureError as error:
            self.failures.append(str(error))
            return
        finally:
            weights.close()
        self._keep(models, profiles, after)

    def _of_gpu(self, models: Sequence[Model]) -> AskedParts:
        settings, wanted = self._where.settings[0], self._wanted
        task = GpuTask(
            settings.uuid,
            settings.backend,
            settings.lanes,
            tuple(models),
            wanted.layers,
            reader_placements(settings.gpu) if wanted.pressure else (),
            handle_context=settings.handle_context,
        )
        return task, settings.environment(100)

    def _of_cores(self, models: Sequence[Model], weights_dir: str | None) -> AskedParts:
        cpu = self._where.cpu
        task = CoresTask(cpu.cores, tuple(models), weights_dir, models_dir=cpu.models_dir)
        return task, {}

    def _keep(
        self, models: Sequence[Model], profiles: dict[str, Profile], after: dict[str, Profile]
    ) -> None:
        for model in models:
            if model.key in after:
                profiles[model.key] = after[model.key]
                thorough = self._store.is_thorough(model, self._rig.gpu)
                how = THOROUGH if thorough else QUICK
                self._store.save(after[model.key], model, self._rig.gpu, how)

    def _keep_coruns(self, models: Sequence[Model], seen: Sequence[CoRun]) -> None:
        kind = self._rig.gpu.kind
        path: Path = corun_path(self._store.folder, kind)
        try:
            save_coruns(path, kind, {model.name: model.digest for model in models}, seen)
        except OSError as error:
            self.failures.append(f"{path}: cannot be written ({error.strerror})")


_LOG = logging.getLogger(__name__)
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
    trust_models: str


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
        InputError: it does not hold what is named.
    """
    loop = asyncio.get_running_loop()
    found = find_models(task.root, task.names)
    arena, arenas = Arena.create(_ARENA_BYTES), ArenaMap(os.getpid())
    arenas.add(arena)
    devices = task.where.make(loop, arenas, (arena.number,))
    rig = Rig(devices.all[0], WallClock(loop), arena)
    store = ProfileStore(task.folder)
    trusted = TrustedModels.of(task.trust_models)
    preparation = ModelPreparer(task.root, devices.describe, rig, store, trusted)
    models: list[Model] = []
    failures: list[str] = []
    try:
        async with telling(_LOG, lambda: f"opening models, {len(models)} are open"):
            for draft in drafts(task.root, found, failures):
                try:
                    models.append(await preparation.open(draft, generation=0))
                except (RepositoryError, ServeError) as error:
                    failures.append(f"{draft.name}: {error}")
                    continue
                devices.register(models[-1])
        filled = await fill(rig, models, store, progress=on_step, force=task.force)
        further = ExtraProfiling(task.wanted, task.where, rig, store)
        for key in filled.guessed:
            del filled.profiles[key]
        async with telling(_LOG, lambda: "measuring layers, pressure or neighbours, as asked for"):
            seen = await further.measure(models, filled.profiles)
        failures += [*further.failures, *filled.failures.values(), *filled.guessed.values()]
        return Findings(models, filled, seen, failures)
    finally:
        await rig.close()
        devices.close()
        arenas.close()
        arena.close()
