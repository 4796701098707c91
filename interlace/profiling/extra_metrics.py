"""What goes into profiles beside latency: power, pressure, layers, and models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.corun import CoRun, CoRunModel, batch_for, corun_share_pct
from interlace.profiling.corun_partitions import measure_coruns
from interlace.profiling.cuda.nvml import Nvml
from interlace.profiling.cuda.power import PowerMeter, idle_w, measure_power, power_points
from interlace.profiling.cuda.process import reader_placements, with_findings
from interlace.profiling.findings import take_apart
from interlace.profiling.rig import MeasureError, Rig

Known = Mapping[str, Profile]  #: by deployment key
_IDLE_S = 1.0
_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class ExtraMetrics:
    """What is measured beside latency."""

    layers: bool = False
    pressure: bool = False
    power: bool = False
    corun: bool = False

    @property
    def of_a_gpu(self) -> bool:
        """Whether something is wanted that cores do not have."""
        return self.pressure or self.power


async def with_power(
    rig: Rig,
    nvml: Nvml,
    models: Sequence[Model],
    known: Known,
    wanted: ExtraMetrics,
    failures: list[str],
) -> tuple[dict[str, Profile], dict[str, dict[tuple[int, int], float]]]:
    """Profiles with power, and by model the DRAM utilisation that the GPU counted.

    Raises:
        NvmlError: the GPU does not count its energy.
    """
    meter = PowerMeter(rig, nvml)
    idle = await idle_w(rig, meter, _IDLE_S)
    after: dict[str, Profile] = {}
    counted: dict[str, dict[tuple[int, int], float]] = {}
    for model in models:
        profile = known[model.key]
        try:
            seen = await measure_power(
                rig, meter, model, _points(rig, profile, wanted), idle, _WINDOW_S
            )
        except MeasureError as error:
            failures.append(f"{model.name}: {error}")
            continue
        draws = {key: one.draw for key, one in seen.items()} if wanted.power else {}
        after[model.key] = replace(profile, draws={**profile.draws, **draws})
        counted[model.key] = {
            key: one.counters.dram for key, one in seen.items() if one.counters.dram is not None
        }
    return after, counted


def _points(rig: Rig, profile: Profile, wanted: ExtraMetrics) -> dict[int, tuple[int, ...]]:
    """Where power is wanted, and where readers will stand beside the model."""
    points = power_points(profile) if wanted.power else {}
    for place in reader_placements(rig.gpu) if wanted.pressure else ():
        known = sorted(batch for batch, share in profile.points if share == place.share_pct)
        both = {known[0], known[-1]} if known else set()
        points[place.share_pct] = tuple(sorted({*points.get(place.share_pct, ()), *both}))
    return {share: batches for share, batches in points.items() if batches}


async def with_parts(
    process: str,
    task: msgspec.Struct,
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
    for found in await take_apart(process, task, environment):
        if found.error:
            failures.append(f"{DeploymentKey.parse(found.model).name}: {found.error}")
            continue
        after[found.model] = with_findings(known[found.model], found, counted.get(found.model, {}))
    return after


async def side_by_side(
    rig: Rig, models: Sequence[Model], known: Known, failures: list[str], seconds: float = 0.5
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
            async for group in measure_coruns(rig, sides, share_pct, count, seconds):
                seen += group
        except MeasureError as error:
            failures.append(f"side by side at {share_pct} %: {error}")
    return seen
