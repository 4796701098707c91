"""What goes into profiles beside latency: pressure, layers, and models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.deployment_key import DeploymentKey
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.corun import CoRun, CoRunModel, batch_for, corun_share_pct
from interlace.profiling.cuda.readers import pressure
from interlace.profiling.findings import PartFindings, PartsTask, ReaderPlacement, take_apart
from interlace.profiling.rig import MeasureError, Rig, measure_coruns

Known = Mapping[str, Profile]  #: by deployment key


@dataclass(frozen=True, slots=True)
class ExtraMetrics:
    """What is measured beside latency."""

    layers: bool = False
    pressure: bool = False
    corun: bool = False


async def with_parts(
    task: PartsTask,
    environment: Mapping[str, str],
    known: Known,
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
        after[found.model] = with_findings(known[found.model], found)
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


def with_findings(profile: Profile, found: PartFindings) -> Profile:
    """The profile with what was found; what was not measured stays what it was."""
    strains, pressures = dict(profile.strains), dict(profile.pressure)
    for at in found.strains:
        key = at.batch, at.share_pct
        if at.strains:
            strains[key] = at.strains
        taken = pressure(at.strains)
        if taken is not None:
            pressures[key] = taken
    layers = found.layers or profile.layers
    cold_ms = found.cold_ms if found.layers else profile.cold_ms
    return replace(profile, layers=layers, cold_ms=cold_ms, strains=strains, pressure=pressures)
