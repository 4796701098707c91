"""What goes into profiles beside latency: pressure, layers, and models side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from interlace.core.deployment_key import DeploymentKey
from interlace.core.hardware import Gpu
from interlace.core.messages import Load, Unload
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.corun import CoRun, CoRunModel, batch_for, corun_share_pct
from interlace.profiling.corun_partitions import keep_busy, measure_coruns
from interlace.profiling.cuda.nvml import Nvml, NvmlError
from interlace.profiling.cuda.readers import pressure
from interlace.profiling.findings import PartFindings, PartsTask, ReaderPlacement, take_apart
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.samples import SampleInputs

Known = Mapping[str, Profile]  #: by deployment key


@dataclass(frozen=True, slots=True)
class ExtraMetrics:
    """What is measured beside latency."""

    layers: bool = False
    pressure: bool = False
    corun: bool = False


async def count_dram_use(
    rig: Rig, nvml: Nvml, models: Sequence[Model], known: Known, failures: list[str]
) -> dict[str, dict[tuple[int, int], float]]:
    """DRAM utilisation that the GPU counts, by model, where readers will stand beside it.

    Readers stand in where the GPU has no such counters, or refuses them.
    """
    counted: dict[str, dict[tuple[int, int], float]] = {}
    for model in models if nvml.counts else ():
        try:
            points = _points(rig, known[model.key])
            counted[model.key] = await measure_dram_use(rig, nvml, model, points)
        except MeasureError as error:
            failures.append(f"{model.name}: {error}")
        except NvmlError:
            break
    return counted


def _points(rig: Rig, profile: Profile) -> dict[int, tuple[int, ...]]:
    """The smallest and the largest batch at each share that readers stand beside."""
    points: dict[int, tuple[int, ...]] = {}
    for place in reader_placements(rig.gpu):
        batches = sorted(batch for batch, share in profile.points if share == place.share_pct)
        if batches:
            points[place.share_pct] = tuple(sorted({batches[0], batches[-1]}))
    return points


async def with_parts(
    task: PartsTask,
    environment: Mapping[str, str],
    known: Known,
    counted: Mapping[str, Mapping[tuple[int, int], float]],
    failures: list[str],
) -> dict[str, Profile]:
    """Profiles with layers and pressure, found by a process of its own.

    ``known`` are all models of the task.

    Raises:
        MeasureError: that process did not start or end.
    """
    after: dict[str, Profile] = {}
    for found in await take_apart(task, environment):
        if found.error:
            failures.append(f"{DeploymentKey.parse(found.model).name}: {found.error}")
            continue
        after[found.model] = with_findings(known[found.model], found, counted.get(found.model, {}))
    return after


async def side_by_side(
    rig: Rig, models: Sequence[Model], known: Known, failures: list[str]
) -> list[CoRun]:
    """All pairs of models, and as many triples as there are models, where so many may stand.

    Each in the largest equal share, in the largest batch that keeps its promise there.
    """
    seen: list[CoRun] = []
    for count in (2, 3):
        share_pct = corun_share_pct(rig.gpu, count)
        if share_pct is None:
            continue
        sides = [
            CoRunModel(model, batch_for(known[model.key], share_pct, model.terms.slo_ms))
            for model in models
        ]
        try:
            async for group in measure_coruns(rig, sides, share_pct, count):
                seen += group
        except MeasureError as error:
            failures.append(f"side by side at {share_pct} %: {error}")
    return seen


def reader_placements(gpu: Gpu) -> tuple[ReaderPlacement, ...]:
    """A quarter, half and three quarters of the GPU, with the largest reader beside each.

    Beside half of it a small reader, too: how a model suffers from less. Nothing where no two
    partitions may stand side by side.
    """
    half = corun_share_pct(gpu, 2)
    if half is None:
        return ()
    quarter = max((share for share in gpu.shares_pct if share <= half // 2), default=half)
    most = _beside(gpu, quarter)
    return tuple(
        ReaderPlacement(
            share, tuple(sorted({_beside(gpu, share), *((quarter,) if share == half else ())}))
        )
        for share in sorted({quarter, half, most})
    )


def _beside(gpu: Gpu, share_pct: int) -> int:
    return max(other for other in gpu.shares_pct if gpu.legal(sorted((share_pct, other))))


def with_findings(
    profile: Profile, found: PartFindings, dram: Mapping[tuple[int, int], float]
) -> Profile:
    """The profile with what was found; what was not measured stays what it was.

    ``dram`` is what the GPU's own counters said, and goes before what readers say of DRAM; of the
    L2 there are readers alone.
    """
    strains, pressures = dict(profile.strains), dict(profile.pressure)
    for at in found.strains:
        key = at.batch, at.share_pct
        if at.strains:
            strains[key] = at.strains
        taken = pressure(at.strains)
        if taken is not None:
            pressures[key] = taken[0], dram.get(key, taken[1])
    layers = found.layers or profile.layers
    cold_ms = found.cold_ms if found.layers else profile.cold_ms
    return replace(profile, layers=layers, cold_ms=cold_ms, strains=strains, pressure=pressures)


_TIMEOUT_S = 120.0
#: Before counting: clocks settle.
_SETTLE_S = 0.3
_COUNTED_S = 1.0


async def measure_dram_use(
    rig: Rig, nvml: Nvml, model: Model, points: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], float]:
    """DRAM utilisation, 0..1, by (batch, share), the GPU kept full for a second each.

    ``points`` are batches by share. What the GPU does not count is left out.

    Raises:
        MeasureError: the model does not load or fails.
        NvmlError: the counters are refused.
    """
    found: dict[tuple[int, int], float] = {}
    inputs = SampleInputs(model, rig.arena)
    try:
        for share_pct, batches in points.items():
            partition = await rig.partition(share_pct, _TIMEOUT_S)
            async with _loaded(rig, partition, model, batches):
                for batch in batches:
                    await keep_busy(rig, partition, inputs, batch, _SETTLE_S, depth=2)
                    first = nvml.sample()
                    await keep_busy(rig, partition, inputs, batch, _COUNTED_S, depth=2)
                    used = nvml.dram_use(first, nvml.sample())
                    if used is not None:
                        found[batch, share_pct] = used
    finally:
        inputs.release()
    return found


@asynccontextmanager
async def _loaded(
    rig: Rig, partition: str, model: Model, batches: Sequence[int]
) -> AsyncIterator[None]:
    await rig.do(Load(rig.gpu.id, partition, model.key, tuple(batches)), _TIMEOUT_S)
    try:
        yield
    finally:
        with suppress(MeasureError):  # the partition died with the model
            await rig.do(Unload(rig.gpu.id, partition, model.key), _TIMEOUT_S)
