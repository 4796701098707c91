"""Profiles for a set of models: from the store where they hold, measured where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.profiler import profile_all
from interlace.profiling.progress import OnSweepStep, no_progress
from interlace.profiling.rig import Rig
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import THOROUGH, SweepSettings


@dataclass(frozen=True, slots=True)
class FillResult:
    """Profiles and failures by deployment key; ``measured`` names the keys that were not stored."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    measured: tuple[str, ...] = ()


async def fill(
    rig: Rig,
    models: Sequence[Model],
    store: ProfileStore,
    settings: SweepSettings = THOROUGH,
    progress: OnSweepStep = no_progress,
    force: bool = False,
) -> FillResult:
    """A profile for each registered model; what is measured is stored at once.

    ``force`` measures everything again. A model that cannot be measured is in ``failures``.
    """
    stored = {} if force else await asyncio.to_thread(_stored, store, models, rig, settings)
    missing = [model for model in models if model.key not in stored]
    profiles, failures = dict(stored), {}
    async for model, profile, error in profile_all(rig, missing, settings, progress):
        if profile is None:
            failures[model.key] = error
            continue
        profiles[model.key] = profile
        # Beside the loop: a disk that is busy takes its time.
        await asyncio.to_thread(store.save, profile, model, rig.gpu, settings)
    return FillResult(profiles, failures, tuple(model.key for model in missing))


def _stored(
    store: ProfileStore, models: Sequence[Model], rig: Rig, settings: SweepSettings
) -> dict[str, Profile]:
    found = {model.key: store.find(model, rig.gpu, settings) for model in models}
    return {key: profile for key, profile in found.items() if profile is not None}
