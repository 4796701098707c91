"""Latency of the ten models by batch and share of this GPU, kept as `interlace profile` does."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import maker, offered_pct, parted
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, seen, skipped
from bench.gpu.world import kept_profiles
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.perf.knee import knee_pct
from interlace.perf.latency import surface
from interlace.profiling.profiler import profile_all
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import SweepSettings

#: Shares to measure, next to which the device has legal ones; what lies between is interpolated.
_SHARES_PCT: Final = (12, 24, 36, 48, 72, 100)
_REAL_SETTINGS: Final = SweepSettings(samples=60, warm_ups=2, budget_s=0.05, factor=4, retakes=1)
_DRY_SETTINGS: Final = SweepSettings(samples=3, samples_min=2, warm_ups=1, budget_s=0.01, retakes=0)


def settings_of(bench: Bench) -> SweepSettings:
    """How thoroughly latencies are measured."""
    return bench.size(_REAL_SETTINGS, _DRY_SETTINGS)


def store_of(bench: Bench) -> ProfileStore:
    """Where profiles are kept: a folder for each kind of GPU, as the package has them."""
    return ProfileStore(bench.out / "profiles")


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a model; a model that cannot be measured is a row too."""
    kind = parted(bench)
    legal = offered_pct(bench, kind)
    wanted = bench.size(_SHARES_PCT, (48, 100))
    shares = tuple(sorted({min(legal, key=lambda one: abs(one - w)) for w in wanted}))
    settings, store = settings_of(bench), store_of(bench)
    async with stand(bench, maker(bench, kind, shares, keep=True)) as opened:
        models = opened.models()
        async for measured in profile_all(opened.rig, models, settings):
            if measured.profile is None:
                yield failed(measured.model.name, measured.error)
                continue
            store.save(measured.profile, measured.model, opened.device.gpu, settings)
            yield _row(measured.model.name, measured.profile)
            if bench.left_s <= 0:
                break


def _row(name: str, profile: Profile) -> Row:
    largest = max(batch for batch, share in profile.points if share == 100)
    one, most = profile.points[1, 100].median_ms, profile.points[largest, 100].median_ms
    bend = knee_pct(surface(profile), largest)
    points = {f"{batch}x{share}": p.median_ms for (batch, share), p in profile.points.items()}
    return seen(
        name,
        f"1 row {one:.2f} ms, {largest} rows {most:.2f} ms, {1000 * largest / most:.0f} rows/s; "
        f"knee at {bend} %",
        points_ms=points,
        load_ms=profile.load_ms,
        weights_bytes=profile.weights_bytes,
        knee_pct=bend,
    )


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
