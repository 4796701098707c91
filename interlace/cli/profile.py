"""`interlace profile`: measure models on this machine and keep the figures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Console

from interlace.cli.failure import CommandError
from interlace.cli.machine import default_profiles, memory_bytes, parse_cores
from interlace.cli.opening import Say, describe, drafts, find
from interlace.cli.profiletable import cost_table, latency_table
from interlace.cli.progressbar import SweepBar
from interlace.cli.screen import console
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.device.cpu import CpuDevice
from interlace.device.settings import CpuSettings
from interlace.measure.fill import Filled, fill
from interlace.measure.record import rows
from interlace.measure.rig import Rig
from interlace.measure.store import ProfileStore
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

_ARENA_BYTES = 1 << 30  # address space; memory is taken as inputs are written


@dataclass(frozen=True, slots=True)
class _Task:
    """What was asked for."""

    root: Path
    names: tuple[str, ...]
    cores: tuple[int, ...]
    folder: Path
    force: bool


def profile(
    models_dir: Annotated[Path, typer.Argument(help="The model repository.")],
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; may be given again.")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(help="Cores to measure on, such as 0-3,6; else all.")
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="Where to keep them.  [default: ~/.cache/interlace/profiles]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure what is known, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """Measure models on this machine's cores and keep the figures.

    Runs every model at batches 1, 2, 4, ... and every share of the cores, and stores latency
    (median, p95, p99), memory, load time and overhead in one readable file a model. What is
    stored already and still holds is not measured again. `interlace serve` does the same for
    models that are new to it; this is for doing it ahead of time, or for looking.

    \b
    Examples:
      interlace profile models/
      interlace profile models/ --model embedder --model detector --force
      interlace profile models/ --cores 0-3 --json > profiles.json
    """
    task = _Task(
        models_dir,
        tuple(model or ()),
        parse_cores(cores),
        profiles or default_profiles(),
        force,
    )
    complaints: list[str] = []
    models, filled = uvloop.run(_measure(task, console(stderr=True), complaints.append))
    complaints += filled.failures.values()
    found = {_label(one): filled.profiles[one.key] for one in models if one.key in filled.profiles}
    if as_json:
        typer.echo(_as_json(found))
    elif found:
        _show(found, len(models) - len(filled.measured), task.folder)
    if complaints:
        raise CommandError("\n".join(["not every model could be measured:", *complaints]))


async def _measure(task: _Task, errors: Console, say: Say) -> tuple[list[Model], Filled]:
    loop = asyncio.get_running_loop()
    arena, arenas = Arena.create(_ARENA_BYTES), ArenaMap(os.getpid())
    arenas.add(arena)
    with TemporaryDirectory(prefix="interlace-weights-") as weights:
        settings = CpuSettings(task.cores, memory_bytes(), weights_dir=weights)
        device = CpuDevice(loop, arenas, settings)
        rig = Rig(device, WallClock(loop), arena)
        try:
            models = await _open(device, task, say)
            store = ProfileStore(task.folder, errors.print)
            with SweepBar(errors) as bar:
                return models, await fill(rig, models, store, progress=bar, force=task.force)
        finally:
            await rig.close()
            device.close()
            arenas.close()
            arena.close()


async def _open(device: CpuDevice, task: _Task, say: Say) -> list[Model]:
    found = drafts(task.root, find(task.root, task.names), say)
    opened = [await describe(device, draft, say) for draft in found]
    return [one for one in opened if one is not None]


def _label(model: Model) -> str:
    return model.name if model.version == 1 else f"{model.name}/{model.version}"


def _show(found: dict[str, Profile], known: int, folder: Path) -> None:
    out = console()
    out.print(latency_table(found))
    out.print(cost_table(found))
    out.print(f"kept in {folder}; {known} of {len(found)} were known (--force measures them again)")


def _as_json(found: dict[str, Profile]) -> str:
    entries: Sequence[object] = [
        {
            "model": name,
            "device": one.gpu_kind,
            "weights_bytes": one.weights_bytes,
            "activation_bytes": one.activation_bytes,
            "load_ms": one.load_ms,
            "overhead_ms": one.overhead.total_ms,
            "points": rows(one),
        }
        for name, one in found.items()
    ]
    return msgspec.json.format(msgspec.json.encode(entries)).decode()
