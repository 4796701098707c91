"""`interlace profile`: measure models on this machine and keep the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.estimation import EstimateTask, kinds_of
from interlace.assembly.machine import cpu_settings, default_profiles
from interlace.assembly.profiling_run import ProfilingTask, check, measure
from interlace.cli.estimates import profile_estimated
from interlace.cli.options import Cores, Device, Gpus, Json, Measured, Profiles, Root, TrustModels
from interlace.cli.profile_tables import cost_table, further_tables, latency_table
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import console, show_logs
from interlace.core.json_text import json_text
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError, UserError
from interlace.perf.latency import doubts
from interlace.profiling.corun import CoRun
from interlace.profiling.extra_metrics import ExtraMetrics
from interlace.profiling.profile_csv import profiles_text
from interlace.profiling.profile_file import extras_rows, point_rows
from interlace.runtime.event_loop import run_loop

Layers = Annotated[bool, typer.Option("--layers", help="Also copy and run times of each layer.")]
Pressure = Annotated[
    bool, typer.Option("--pressure", help="Also L2 and DRAM use (--device green).")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print a CSV that interlace plan reads.")]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="Estimate from the models' graphs for --gpu.")
]
_OnlyModels = Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")]
_Kinds = Annotated[
    str | None,
    typer.Option(metavar="KIND[,KIND]", help="With --estimate: kinds of GPU, such as h100."),
]
CoRunning = Annotated[
    bool, typer.Option("--corun", help="Also pairs and triples of models together.")
]


def profile(
    models_dir: Root,
    model: _OnlyModels = None,
    device: Device = "auto",
    gpus: Gpus = None,
    cores: Cores = None,
    profiles: Profiles = None,
    trust_models: TrustModels = "all",
    force: Annotated[bool, typer.Option("--force", help="Measure again what is stored.")] = False,
    layers: Layers = False,
    pressure: Pressure = False,
    corun: CoRunning = False,
    estimate: Estimate = False,
    gpu: _Kinds = None,
    measured: Measured = None,
    as_json: Json = False,
    as_csv: AsCsv = False,
) -> None:
    """Measure models on this machine's GPU or cores and store the profiles.

    Each model runs at batches 1, 2, 4, ... on each share of the device. Latency, memory, load time
    and overhead are stored in one file per model and reused while they are valid. With --estimate
    nothing runs and no GPU is needed.

    \b
    Examples:
      interlace profile models/
      interlace profile models/ --cores 0-3 --csv > profiles.csv
      interlace profile models/ --device green --pressure --corun
      interlace profile models/ --estimate --gpu h100     # no GPU needed
    """
    folder, names = profiles or default_profiles(), tuple(model or ())
    if estimate or gpu or measured:
        asked = (models_dir, names, folder, trust_models)
        return _estimate(estimate and not as_csv, gpu, measured or (), asked, as_json)
    with TemporaryDirectory(prefix="interlace-weights-") as weights:
        where = choose_accelerators(device, cpu_settings(cores, Path(weights), models_dir), gpus)
        check(wanted := ExtraMetrics(layers, pressure, corun), where)
        task = ProfilingTask(models_dir, names, where, folder, force, wanted, trust_models)
        show_logs(errors := console(stderr=True))
        with ProgressBar(errors) as bar:
            models, filled, seen, failures = run_loop(measure(task, bar.sweep_step))
    found = {_label(one): filled.profiles[one.key] for one in models if one.key in filled.profiles}
    if as_json or as_csv:
        typer.echo(_as_json(found, seen) if as_json else profiles_text(found), nl=as_json)
    elif found:
        _show(found, seen, len(models) - len(filled.measured), folder)
    if failures:
        raise UserError(f"not every model could be measured: {'; '.join(failures)}")


def _estimate(
    wanted: bool,
    gpu: str | None,
    measured: Sequence[Path],
    asked: tuple[Path, tuple[str, ...], Path, str],
    as_json: bool,
) -> None:
    if not (wanted and gpu):
        raise InputError(
            "--estimate takes --gpu KIND, and no --csv; --gpu and --measured take --estimate"
        )
    root, names, folder, trust = asked
    profile_estimated(EstimateTask(root, kinds_of(gpu), names, folder, measured, trust), as_json)


def _label(model: Model) -> str:
    return model.name if model.version == 1 else f"{model.name}/{model.version}"


def _show(found: dict[str, Profile], seen: Sequence[CoRun], known: int, folder: Path) -> None:
    out = console()
    for made in (latency_table(found), cost_table(found), *further_tables(found, seen)):
        out.print(made)
    for name, one in found.items():
        if said := doubts(name, one):
            out.print(said)
    out.print(f"kept in {folder}; {known} of {len(found)} were known (--force measures them again)")


def _as_json(found: dict[str, Profile], seen: Sequence[CoRun]) -> str:
    entries: Sequence[object] = [
        {
            "model": name,
            "device": one.gpu_kind,
            "weights_bytes": one.weights_bytes,
            "activation_bytes": one.activation_bytes,
            "load_ms": one.load_ms,
            "overhead_ms": one.overhead.total_ms,
            "points": point_rows(one),
            "more": extras_rows(one),
            "layers": one.layers,
            "cold_ms": one.cold_ms,
            "beside": [run for run in seen if run.runner.model == name],
        }
        for name, one in found.items()
    ]
    return json_text(entries)
