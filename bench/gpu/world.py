"""What the comparisons ask of this GPU: rates in parts of what it can do at best, SLOs."""

from collections.abc import Mapping, Sequence

import msgspec

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.devices import board
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.profiling.profile_file import profile_of, read_record
from interlace.profiling.profiler import profile_all
from interlace.profiling.sweep import SweepSettings

#: Below this a Python process's own delays decide, whatever the GPU does.
LEAST_SLO_MS = 15.0
#: Without a GPU what is asked must be possible on any machine, however busy.
DRY_SLO_MS = 2_000.0
_SLO_FACTOR = 3.0
#: For a part that runs without the profiles of the part before it.
HASTY = SweepSettings(samples=15, samples_min=3, warm_ups=2, budget_s=0.03, factor=8, retakes=0)


def kept_profiles(bench: Bench, models: Sequence[Model]) -> dict[str, Profile]:
    """What the part "profiles" measured of these very files, by deployment key.

    Only on this kind of GPU: a later start may get another.
    """
    found: dict[str, Profile] = {}
    kind = board(bench).kind
    by_digest = {model.digest: model for model in models}
    for path in sorted((bench.out / "profiles").rglob("*.json")):
        try:
            record = read_record(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            continue
        model = by_digest.get(record.model.digest)
        if model is not None and record.device.kind in (kind, f"{kind}-streams"):
            found[model.key] = profile_of(record, model.key)
    return found


async def profiles_of(
    bench: Bench, stand: Stand, settings: SweepSettings = HASTY
) -> dict[str, Profile]:
    """Profiles of the stand's models: kept ones where they are, measured in haste where not.

    Raises:
        RuntimeError: a model cannot be measured.
    """
    models = stand.models()
    found = kept_profiles(bench, models)
    missing = [model for model in models if model.key not in found]
    async for measured in profile_all(stand.rig, missing, settings):
        if measured.profile is None:
            raise RuntimeError(f"{measured.model.name}: {measured.error}")
        found[measured.model.key] = measured.profile
    await stand.rig.close()
    return found


def nearest_pct(profile: Profile, share_pct: int) -> int:
    """The share that was measured and is next to one."""
    return min({share for _, share in profile.points}, key=lambda one: abs(one - share_pct))


def slo_ms(profile: Profile, gpu: Gpu, least_ms: float = LEAST_SLO_MS) -> float:
    """Three times the latency of half the largest batch on half the GPU."""
    share = nearest_pct(profile, half_pct(gpu))
    points = {batch: p.median_ms for (batch, s), p in profile.points.items() if s == share}
    half = min(points, key=lambda batch: abs(batch - max(points) / 2))
    return max(least_ms, _SLO_FACTOR * points[half])


def cost_s(profile: Profile, gpu: Gpu, within_ms: float) -> float:
    """GPU time of a request at its cheapest share and batch: a term of the area bound.

    Area is a share times how long it is taken (``packing.bounds.area``).
    Where the GPU told its own time it is that alone: what our side of a batch costs is nothing
    that a scheduler must pay, and would make the bound too low.
    """
    return min(
        gpu.fraction(share) * (point.gpu_ms or point.p95_ms) / batch / 1000.0
        for (batch, share), point in profile.points.items()
        if point.p95_ms <= within_ms
    )


def demand(
    profiles: Mapping[str, Profile], gpu: Gpu, load: float, least_ms: float = LEAST_SLO_MS
) -> tuple[Demand, ...]:
    """Equal parts of the GPU's time for each model; at a load of 1 the area bound says: full."""
    found = []
    for key, profile in profiles.items():
        slo = slo_ms(profile, gpu, least_ms)
        rate_rps = load / len(profiles) / cost_s(profile, gpu, slo)
        found.append(Demand(key, rate_rps, slo, max(batch for batch, _ in profile.points)))
    return tuple(found)
