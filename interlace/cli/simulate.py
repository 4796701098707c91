"""`interlace simulate`: what a system would do with a scenario's requests, without any GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.options import Json, SystemName, positive, system_named
from interlace.cli.planning.report import as_json as to_json
from interlace.cli.screen import console
from interlace.cli.simulating.bar import SimulationProgress
from interlace.cli.simulating.draw import draw, drawings
from interlace.cli.simulating.table import show, show_compared
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet
from interlace.core.plan import Plan
from interlace.core.user_errors import InputError
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import (
    SimulationResult,
    SimulationSettings,
    planned,
    simulate_system,
    trace,
)
from interlace.policy.base import System
from interlace.policy.catalog import names

_Target = Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="Models, rates, a GPU.")]
_Systems = Annotated[
    str | None, typer.Option(metavar="A,B,..", help="Several on one trace; or 'all'.")
]
_Dispatcher = Annotated[
    str | None, typer.Option(metavar="SYSTEM", help="Dispatch as this system does instead.")
]
_Seconds = Annotated[float, typer.Option(help="Length of the trace.")]
_Seed = Annotated[int, typer.Option(help="Arrivals are the same for the same seed.")]
_Seeds = Annotated[int, typer.Option(help="That many runs, with seeds from --seed on.")]
_Load = Annotated[str, typer.Option(metavar="X[,X..]", help="Factors on every rate.")]
_Gpus = Annotated[
    int | None, typer.Option(help="A fixed number of GPUs; else the fewest the system plans for.")
]
_Plan = Annotated[
    Path | None, typer.Option("--plan", help="Follow this plan (interlace plan --save).")
]
_Kind = Annotated[str | None, typer.Option(help=f"Another kind of GPU: {', '.join(GPU_KINDS)}.")]
_Plot = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=FILE", help="Draw cdf, tiles, load or gpus as .svg or .png."),
]
_Log = Annotated[Path | None, typer.Option(help="Keep the events of one run, for replay.")]
_Jitter = Annotated[bool, typer.Option("--jitter", help="Spread executions as profiles do.")]


def simulate(
    target: _Target,
    system: SystemName = "interlace",
    systems: _Systems = None,
    dispatcher: _Dispatcher = None,
    seconds: _Seconds = 20.0,
    load: _Load = "1",
    seed: _Seed = 0,
    seeds: _Seeds = 1,
    gpus: _Gpus = None,
    plan_file: _Plan = None,
    gpu: _Kind = None,
    plot: _Plot = None,
    jitter: _Jitter = False,
    log: _Log = None,
    as_json: Json = False,
) -> None:
    """Play a scenario's requests in virtual time and report what became of them.

    The engine that serves decides; only clock and GPUs are simulated. Each system plans for the
    scenario's rates and gets the fewest GPUs it asks for, or --gpus of them.

    \b
    Examples:
      interlace simulate examples/planning/nine.toml
      interlace simulate examples/planning/nine.toml --systems interlace,gpulet,nexus --seeds 3
      interlace simulate examples/planning/nine.toml --gpus 2 --load 0.5,1,1.5 --plot load=load.svg
      interlace simulate examples/planning/nine.toml --plot tiles=tiles.svg --plot cdf=cdf.svg
    """
    positive({"--seconds": seconds, "--seeds": seeds, "--gpus": gpus})
    if plan_file is not None and gpus is not None:
        raise InputError("--plan says how many GPUs there are: --gpus does not go with it")
    pictures = drawings(plot or ())
    rows = _rows(system, systems, dispatcher)
    question = read_scenario(target, gpu)
    runs = [
        SimulationSettings(seconds, one_load, one_seed, gpus, plan_file, jitter)
        for one_load in _loads(load)
        for one_seed in range(seed, seed + seeds)
    ]
    if log is not None and len(rows) * len(runs) > 1:
        raise InputError("--log keeps one run: one system, one load, one seed")
    found = _played(question, target.parent, rows, runs, log)
    if as_json:
        typer.echo(to_json([_plain(trial) for trial in found]))
    else:
        _show(found)
    for kind, path in pictures:
        draw(kind, path, found)
        typer.echo(f"drawn: {path}", err=True)


def _rows(system: str, systems: str | None, dispatcher: str | None) -> list[System]:
    wanted = names() if systems == "all" else (systems or system).split(",")
    rows = [system_named(name.strip()) for name in wanted]
    if dispatcher is None:
        return rows
    other = system_named(dispatcher)
    return [replace(row, name=f"{row.name}+{other.name}", dispatcher=other.dispatcher)
            for row in rows]  # fmt: skip


def _loads(text: str) -> list[float]:
    try:
        loads = [float(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"--load {text}: expected numbers such as 0.5,1,1.5") from None
    for one in loads:
        positive({"--load": one})
    return loads


def _played(
    question: Scenario,
    folder: Path,
    rows: Sequence[System],
    runs: Sequence[SimulationSettings],
    log: Path | None,
) -> list[SimulationResult]:
    found: list[SimulationResult] = []
    plans: dict[tuple[str, float], tuple[Fleet, Plan]] = {}  # the same for every seed
    with SimulationProgress(console(stderr=True), len(rows) * len(runs)) as bar:
        for settings in runs:
            arrivals = trace(question, folder, settings)
            for row in rows:
                bar.begin(f"{row.name}, load {settings.load:g}, seed {settings.seed}")
                key = (row.name, settings.load)
                if key not in plans:
                    plans[key] = planned(question, row, settings)
                found.append(
                    simulate_system(question, row, arrivals, settings, plans[key], log, bar)
                )
    return found


def _show(found: Sequence[SimulationResult]) -> None:
    out = console()
    by_load: dict[float, dict[str, list[SimulationResult]]] = {}
    for trial in found:
        by_load.setdefault(trial.settings.load, {}).setdefault(trial.system, []).append(trial)
    if len(found) == 1:
        show(out, found[0])
        return
    for one_load, trials in by_load.items():
        offered = next(iter(trials.values()))[0].report.offered_rps
        out.print(f"load {one_load:g}: {offered:.0f} requests/s offered")
        show_compared(out, trials)


def _plain(trial: SimulationResult) -> Mapping[str, object]:
    settings = trial.settings
    return {
        "system": trial.system,
        "load": settings.load,
        "seed": settings.seed,
        "gpus": trial.gpus,
        "gpus_bound": trial.bound.gpus,
        "highest_load": trial.highest_load,
        "unserved_rows_per_s": dict(trial.plan.unserved_rows_per_s),
        "report": trial.report.plain(),
    }
