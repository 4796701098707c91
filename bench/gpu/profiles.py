"""Latency of the models by batch and share of this GPU, kept as `interlace profile` does."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import maker, parted
from bench.gpu.opened import stand
from bench.gpu.rows import Row, failed, seen
from bench.gpu.world import kept_profiles
from interlace.core.profile import Profile
from interlace.perf.latency import surface
from interlace.perf.sizing import knee_pct
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
    async with stand(bench, maker(bench, parted(bench), keep=True), bench.models) as opened:
        async for row in measured(bench, opened):
            yield row


async def measured(bench: Bench, opened: Stand) -> AsyncIterator[Row]:
    """Measures and keeps each model of the stand that has no kept profile; a row of each."""
    gpu, rig, settings = opened.device.gpu, opened.rig, settings_of(bench)
    models = opened.models()
    kept = kept_profiles(bench, models)
    missing = [model for model in models if model.key not in kept]
    wanted = bench.size(_SHARES_PCT, (48, 100))
    shares = {min(gpu.shares_pct, key=lambda one: abs(one - want)) for want in wanted}
    rig.gpu = replace(gpu, shares_pct=tuple(sorted(shares)))
    try:
        async for found in profile_all(rig, missing, settings):
            if found.profile is None:
                yield failed(found.model.name, found.error)
                continue
            store_of(bench).save(found.profile, found.model, gpu, settings)
            yield _row(found.model.name, found.profile)
            if bench.left_s <= 0:
                break
    finally:
        await rig.close()
        rig.gpu = gpu


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
