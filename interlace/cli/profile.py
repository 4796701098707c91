"""`interlace profile`: measure models on this machine and keep the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.estimation import EstimateTask, kinds_of
from interlace.assembly.machine import cpu_settings, default_profiles
from interlace.assembly.profiling_run import ProfilingTask, check, measure
from interlace.cli.estimates import profile_estimated
from interlace.cli.options import Cores, Device, Gpus, Json, Measured, Profiles, Root, TrustModels
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import FoldingTable, console, show_logs
from interlace.core.loading import link_of
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.rendering import json_text
from interlace.core.user_errors import InputError, UserError
from interlace.perf.latency import doubts
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import moved_bytes
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


def further_tables(profiles: Mapping[str, Profile], seen: Sequence[CoRun]) -> Iterator[Table]:
    """Those that have something to say."""
    if any(one.pressure for one in profiles.values()):
        yield _pressure(profiles)
    if any(one.layers for one in profiles.values()):
        yield _layers(profiles)
        yield _cold_starts(profiles)
    if seen:
        yield _company(seen)


def _pressure(profiles: Mapping[str, Profile]) -> Table:
    headings = ("batch", "share %", "L2 %", "DRAM %", "worst slowdown")
    made = FoldingTable(("model",), headings, "use of memory, and what a reader beside does to it")
    for name, profile in profiles.items():
        for key, (l2, dram) in sorted(profile.pressure.items()):
            worst = max((one.slowdown for one in profile.strains.get(key, ())), default=None)
            told = "-" if worst is None else f"{worst:.2f}"
            made.add_row(name, *map(str, key), f"{100 * l2:.0f}", f"{100 * dram:.0f}", told)
    return made


def _layers(profiles: Mapping[str, Profile]) -> Table:
    headings = ("layers", "copy ms", "run ms", "run, weights on the host")
    made = FoldingTable(("model",), headings, "layers: sums over them, one row")
    for name, profile in profiles.items():
        layers = profile.layers
        if layers:
            sums = (
                sum(one.copy_ms for one in layers),
                sum(one.run_ms for one in layers),
                sum(one.run_host_ms for one in layers),
            )
            made.add_row(name, str(len(layers)), *(f"{value:.2f}" for value in sums))
    return made


def _cold_starts(profiles: Mapping[str, Profile]) -> Table:
    headings = ("warm ms", *COLD_POLICIES, "measured", "bound", "MB copied", "MB left")
    made = FoldingTable(
        ("model",), headings, "cold starts, predicted: ms to the end of the first row"
    )
    for name, profile in profiles.items():
        layers = profile.layers
        if layers:
            links = link_of(profile.gpu_kind)
            plans = [row.cold_start(layers, links) for row in COLD_POLICIES.values()]
            copied = moved_bytes(layers, plans[-1])
            left = sum(one.weights_bytes for one in layers) - copied
            times = (sum(one.run_ms for one in layers), *(plan.end_ms for plan in plans))
            bytes_mb = (f"{one / 1e6:.1f}" for one in (copied, left))
            seen = (
                f"{profile.cold_ms:.2f}" if profile.cold_ms else "-",
                f"{plans[-1].bound_ms:.2f}",
            )
            made.add_row(name, *(f"{value:.2f}" for value in times), *seen, *bytes_mb)
    return made


def _company(seen: Sequence[CoRun]) -> Table:
    headings = ("batch", "share %", "alone ms", "beside ms", "slowdown", "overlap %")
    made = FoldingTable(("model", "beside"), headings, "side by side", prose=["beside"])
    for one in seen:
        beside = " + ".join(other.model for other in one.neighbours)
        times = (f"{one.alone_ms:.2f}", f"{one.beside_ms:.2f}", f"{one.slowdown:.2f}")
        cells = (str(one.runner.batch), str(one.runner.share_pct), *times)
        made.add_row(one.runner.model, beside, *cells, f"{100 * one.overlap:.0f}")
    return made


def latency_table(profiles: Mapping[str, Profile]) -> Table:
    """Median and p95 in ms, and rows per second, for each model, batch and share."""
    shares = sorted({share for one in profiles.values() for _, share in one.points})
    headings = [f"{word} {share} %" for share in shares for word in ("median", "p95", "rows/s")]
    made = FoldingTable(("model",), ("batch", *headings), "latency in ms by batch and share")
    for name, profile in profiles.items():
        for index, row in enumerate(_rows(profile, shares)):
            made.add_row("" if index else name, *row)
        made.add_section()
    return made


def cost_table(profiles: Mapping[str, Profile]) -> Table:
    """Memory, load time and overhead of each model."""
    headings = ("bare MB", "to run MB", "load ms", "overhead ms")
    made = FoldingTable(("model",), headings, "memory, and time beside the model's own")
    for name, profile in profiles.items():
        made.add_row(
            name,
            f"{profile.weights_bytes / 1e6:.1f}",
            f"{profile.activation_bytes / 1e6:.1f}",
            f"{profile.load_ms:.0f}",
            f"{profile.overhead.total_ms:.2f}",
        )
    return made


def _rows(profile: Profile, shares: list[int]) -> Iterator[list[str]]:
    for batch in sorted({batch for batch, _ in profile.points}):
        cells = [str(batch)]
        for share in shares:
            point = profile.points.get((batch, share))
            if point is None:
                cells += ["-", "-", "-"]
                continue
            rate = f"{1000.0 * batch / point.median_ms:.0f}"
            cells += [f"{point.median_ms:.2f}", f"{point.p95_ms:.2f}", rate]
        yield cells
