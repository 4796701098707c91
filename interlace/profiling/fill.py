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
    """Profiles and failures by deployment key; ``measured`` names the keys that were not stored.

    ``guessed`` says of profiles that are not measured why: they are not stored either.
    """

    profiles: dict[str, Profile] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    guessed: dict[str, str] = field(default_factory=dict)
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

    Of models of one architecture one is measured.

    ``force`` measures everything again. A model that cannot be measured is in ``failures``.
    """
    stored = {} if force else await asyncio.to_thread(_stored, store, models, rig, settings)
    missing = [model for model in models if model.key not in stored]
    profiles, failures, measured = dict(stored), dict[str, str](), list[str]()
    guessed: dict[str, str] = {}
    while missing:
        some = one_of_each(missing)
        async for model, profile, error in profile_all(rig, some, settings, progress):
            measured.append(model.key)
            if profile is None:
                failures[model.key] = error
                continue
            profiles[model.key] = profile
            if error:
                guessed[model.key] = error
                continue
            # Beside the loop: a disk that is busy takes its time.
            await asyncio.to_thread(store.save, profile, model, rig.gpu, settings)
        left = [model for model in missing if model.key not in measured]
        profiles |= await asyncio.to_thread(_stored, store, left, rig, settings)
        missing = [model for model in left if model.key not in profiles]
    return FillResult(profiles, failures, guessed, tuple(measured))


def one_of_each(models: Sequence[Model]) -> list[Model]:
    """Of models that are alike but for their weights the one that may do most; else all."""
    alike: dict[str, Model] = {}
    for model in models:
        other = alike.setdefault(model.architecture or model.key, model)
        if _reach(model) > _reach(other):
            alike[model.architecture] = model
    return list(alike.values())


def _reach(model: Model) -> tuple[int, float]:
    return model.signature.max_batch, model.terms.slo_ms


def _stored(
    store: ProfileStore, models: Sequence[Model], rig: Rig, settings: SweepSettings
) -> dict[str, Profile]:
    found = {model.key: store.find(model, rig.gpu, settings) for model in models}
    return {key: profile for key, profile in found.items() if profile is not None}
