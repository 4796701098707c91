"""What goes into profiles beside latency: pressure, layers, and models side by side."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import LayerProfile, MemoryContention, Profile
from interlace.device.cuda.backend.base import LibraryChoice
from interlace.profiling.corun import CoRun, CoRunModel, batch_for, corun_share_pct
from interlace.profiling.cuda.readers import pressure
from interlace.profiling.rig import MeasureError, Rig, measure_coruns
from interlace.shm import children

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


class BatchStrains(msgspec.Struct, frozen=True):
    """One batch at one share beside readers."""

    batch: int
    share_pct: int
    strains: tuple[MemoryContention, ...]


class PartFindings(msgspec.Struct, frozen=True):
    """What was found of one model, or why nothing was; ``cold_ms`` is a cold start as planned."""

    model: str
    layers: tuple[LayerProfile, ...] = ()
    strains: tuple[BatchStrains, ...] = ()
    error: str = ""
    cold_ms: float = 0.0


class CoresTask(msgspec.Struct, frozen=True):
    """Models whose layers are measured on these cores, with their weights' files where told.

    The process reads ``models_dir`` and no files of others, if it is given.
    """

    process: ClassVar[str] = "interlace.profiling.cpu.process_main:main"

    cores: tuple[int, ...]
    models: tuple[Model, ...]
    weights_dir: str | None
    takes: int = 7
    models_dir: str = ""


class ReaderPlacement(msgspec.Struct, frozen=True):
    """A model's share of the GPU, and those of readers beside it, one after the other."""

    share_pct: int
    beside_pct: tuple[int, ...]


class GpuTask(msgspec.Struct, frozen=True):
    """Models to take apart on one GPU.

    ``backend`` and ``lanes`` are ``module:function``, as in ``GpuSetup``; ``gpu`` is a UUID;
    ``handle_context`` as in ``CudaSettings``. ``flush_bytes`` is more than its L2 holds (50 MiB on
    an H100).
    """

    process: ClassVar[str] = "interlace.profiling.cuda.examine:main"

    gpu: str
    backend: str
    lanes: str
    models: tuple[Model, ...]
    layers: bool = False
    places: tuple[ReaderPlacement, ...] = ()  #: where readers are set beside the models
    flush_bytes: int = 128 << 20
    handle_context: LibraryChoice = "auto"


PartsTask = CoresTask | GpuTask


async def take_apart(
    task: PartsTask, environment: Mapping[str, str], timeout_s: float = 600.0
) -> list[PartFindings]:
    """The findings of all models of a task; those after a fault of the device are missing.

    The task's ``process`` reads its file and writes a line a model; ``environment`` is what CUDA
    reads at its start.

    Raises:
        MeasureError: the process did not start, or did not end in time.
    """
    with TemporaryDirectory(prefix="interlace-measure-") as folder:
        asked, answered = Path(folder, "task.json"), Path(folder, "findings.jsonl")
        asked.write_bytes(msgspec.json.encode(task))
        files = str(asked), str(answered)
        process = children.start(task.process, *files, environment=environment, pipes=True)
        try:
            ended = await asyncio.to_thread(children.finish, process, timeout_s)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"taking models apart did not end in {timeout_s:g} s") from None
        finally:
            process.kill()  # if this is cancelled
        found = _read(answered)
        if not found:
            why = ended.last_words or "it said nothing"
            raise MeasureError(f"models could not be taken apart: {why}")
        return found


def _read(file: Path) -> list[PartFindings]:
    lines: Iterable[bytes] = file.read_bytes().splitlines() if file.exists() else ()
    return [msgspec.json.decode(line, type=PartFindings) for line in lines]


def write_findings(
    path: str, models: Sequence[Model], measure: Callable[[Model], PartFindings]
) -> bool:
    """Measure each model and write its line at once; false if the GPU failed, which ends it."""
    with Path(path).open("ab", buffering=0) as file:
        for model in models:
            lost = False
            try:
                found = measure(model)
            except Exception as error:
                found = PartFindings(model.key, error=f"{type(error).__name__}: {error}")
                lost = getattr(error, "sticky", False)
            file.write(msgspec.json.encode(found) + b"\n")
            if lost:
                return False
    return True
