"""Profiles that the part `profiles` kept, for the parts that add to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.profiles import settings_of, store_of
from bench.gpu.rows import Row, skipped
from bench.gpu.world import kept_profiles
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile

NO_PROFILE: Final = "the part `profiles` has kept no latencies of it"
NO_TIME: Final = "no time was left for it; --only and --patience give more"


class Kept(NamedTuple):
    """A model, and what was kept of it."""

    model: Model
    profile: Profile


def known(bench: Bench, models: list[Model]) -> list[Kept]:
    """The models of which latencies were kept."""
    kept = kept_profiles(bench, models)
    return [Kept(model, kept[model.key]) for model in models if model.key in kept]


def as_time_goes(bench: Bench, opened: Stand, what: str) -> Iterator[Kept | Row]:
    """Each model that was kept while there is time; a row for every other one."""
    models = opened.models()
    kept = {one.model.key: one for one in known(bench, models)}
    for model in models:
        if model.key not in kept:
            yield skipped(f"{what} of {model.name}", NO_PROFILE)
        elif bench.left_s <= 0:
            yield skipped(f"{what} of {model.name}", NO_TIME)
        else:
            yield kept[model.key]


def keep(bench: Bench, gpu: Gpu, model: Model, change: Callable[[Profile], Profile]) -> None:
    """Change what is kept of a model, as it is now."""
    (now,) = known(bench, [model])
    store_of(bench).save(change(now.profile), model, gpu, settings_of(bench))
