"""`interlace profile`: measure models on this machine and keep the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
import uvloop

from interlace.cli.accelerators import choose
from interlace.cli.failure import CommandError
from interlace.cli.machine import cores_of, default_profiles
from interlace.cli.measuring import Task, measure
from interlace.cli.options import Cores, Device, Json, Profiles, Root
from interlace.cli.profiletable import cost_table, latency_table
from interlace.cli.screen import console
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.measure.record import rows


def profile(
    models_dir: Root,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; may be given again.")
    ] = None,
    device: Device = "auto",
    cores: Cores = None,
    profiles: Profiles = None,
    force: Annotated[bool, typer.Option("--force", help="Measure what is known, too.")] = False,
    as_json: Json = False,
) -> None:
    """Measure models on this machine's GPU or cores and keep the figures.

    Runs every model at batches 1, 2, 4, ... and every share of the device, and stores latency
    (median, p95, p99), memory, load time and overhead in one readable file a model. What is
    stored already and still holds is not measured again. `interlace serve` does the same for
    models that are new to it; this is for doing it ahead of time, or for looking.

    \b
    Examples:
      interlace profile models/
      interlace profile models/ --model embedder --model detector --force
      interlace profile models/ --cores 0-3 --json > profiles.json
      interlace profile models/ --device mps          # each way of parting has its own figures
    """
    folder = profiles or default_profiles()
    complaints: list[str] = []
    with TemporaryDirectory(prefix="interlace-weights-") as weights:
        where = choose(device, cores_of(cores, Path(weights)))
        task = Task(models_dir, tuple(model or ()), where, folder, force)
        models, filled = uvloop.run(measure(task, console(stderr=True), complaints.append))
    complaints += filled.failures.values()
    found = {_label(one): filled.profiles[one.key] for one in models if one.key in filled.profiles}
    if as_json:
        typer.echo(_as_json(found))
    elif found:
        _show(found, len(models) - len(filled.measured), folder)
    if complaints:
        raise CommandError("\n".join(["not every model could be measured:", *complaints]))


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
