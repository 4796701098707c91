"""`interlace simulate`: what a system would do with a scenario's requests, without any GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.options import Json, SystemName, check_output, positive
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import console
from interlace.cli.simulate_tables import show, show_compared
from interlace.core.figure_file import check_figure_path
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.json_text import json_text
from interlace.core.user_errors import InputError
from interlace.planning.drawing import KINDS, draw_runs
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import SimulationResult, SimulationSettings, simulations
from interlace.policy.base import System
from interlace.policy.catalog import known_systems, system_of
from interlace.policy.cold_starts.catalog import COLD_POLICIES

_Target = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml", help="Models, rates, SLOs and a kind of GPU.")
]
_Systems = Annotated[
    str | None, typer.Option(metavar="A,B,..", help="Several systems on one trace; or 'all'.")
]
_Dispatcher = Annotated[
    str | None, typer.Option(metavar="SYSTEM", help="Use this system's dispatcher instead.")
]
_Seconds = Annotated[float, typer.Option(help="Length of the trace in seconds.")]
_Seed = Annotated[int, typer.Option(help="Seed of the arrivals.")]
_Seeds = Annotated[int, typer.Option(help="Number of runs, with seeds from --seed on.")]
_Load = Annotated[str, typer.Option(metavar="X[,X..]", help="Factors on every rate.")]
_Gpus = Annotated[
    int | None, typer.Option(help="Number of GPUs.  [default: the fewest that the system plans]")
]
_Plan = Annotated[
    Path | None, typer.Option("--plan", help="Follow this plan (interlace plan --save).")
]
_Kind = Annotated[
    str | None, typer.Option(help=f"Kind of GPU, not the file's: {', '.join(GPU_KINDS)}.")
]
_Plot = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=FILE", help="Draw cdf, tiles, load or gpus to a .svg or .png."),
]
_Log = Annotated[
    Path | None, typer.Option(help="Write the events of one run, for interlace replay.")
]
_Cold = Annotated[
    str | None,
    typer.Option(metavar="A,B,..", help="Cold-start policies to compare; or 'all'."),
]
_Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of each GPU for swapped weights, such as 16GB."),
]
_HostMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Host memory for weights; the other models are on disk."),
]
_Jitter = Annotated[bool, typer.Option("--jitter", help="Vary execution times as the profiles do.")]


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
    cold: _Cold = None,
    memory: _Memory = None,
    host_memory: _HostMemory = None,
    jitter: _Jitter = False,
    log: _Log = None,
    as_json: Json = False,
) -> None:
    """Simulate a scenario's requests; report goodput, latency, refusals.

    The serving engine decides, in virtual time on simulated GPUs. Each system plans for the
    scenario's rates and gets the fewest GPUs that it needs, or --gpus.

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
    pictures, rows = _pictures(plot or ()), _systems(systems or system, dispatcher, cold)
    runs = [
        SimulationSettings(seconds, one_load, one_seed, gpus, plan_file, jitter)
        for one_load in _loads(load)
        for one_seed in range(seed, seed + seeds)
    ]
    scenario = read_scenario(target, gpu, memory=memory, host_memory=host_memory)
    found = _played(scenario, rows, runs, log)
    if as_json:
        typer.echo(json_text([one.to_dict() for one in found]))
    else:
        _show(found)
    for kind, path in pictures:
        draw_runs(kind, path, found)
        typer.echo(f"drawn: {path}", err=True)


def _systems(names: str, dispatcher: str | None, cold: str | None) -> list[System]:
    """Each system with each answer to cold starts, where some are named."""
    suffix = "" if dispatcher is None else f"+{dispatcher}"
    each = known_systems() if names == "all" else names.split(",")
    colds = [*COLD_POLICIES] if cold == "all" else cold.split(",") if cold else []
    ends = [f"/{one.strip()}" for one in colds] or [""]
    return [system_of(f"{name.strip()}{suffix}{end}") for name in each for end in ends]


def _played(
    scenario: Scenario,
    systems: Sequence[System],
    runs: Sequence[SimulationSettings],
    log: Path | None,
) -> list[SimulationResult]:
    count = len(systems) * len(runs)
    if log is not None and count > 1:
        raise InputError("--log keeps one run: one system, one load, one seed")
    check_output("--log", log)
    with ProgressBar(console(stderr=True)) as bar:
        progress = _RunProgress(bar, count)
        return list(simulations(scenario, systems, runs, log, progress.begin, progress.advance))


class _RunProgress:
    """Runs that follow each other on one bar; in a log a line for each of several."""

    def __init__(self, bar: ProgressBar, runs: int) -> None:
        self._bar, self._runs, self._number, self._name = bar, runs, 0, ""

    def begin(self, name: str) -> None:
        self._number, self._name = self._number + 1, name
        self.advance(0.0)

    def advance(self, part: float) -> None:
        line = f"{self._number} of {self._runs}: {self._name}" if self._runs > 1 else ""
        self._bar.update(self._name, self._number - 1 + part, self._runs, line)


def _pictures(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """``KIND=FILE`` texts, checked before anything is run."""
    found: list[tuple[str, Path]] = []
    for text in texts:
        kind, _, file = text.partition("=")
        if kind not in KINDS or not file:
            raise InputError(f"--plot {text}: expected KIND=FILE, KIND one of {', '.join(KINDS)}")
        check_figure_path(Path(file))
        check_output("--plot", Path(file))
        found.append((kind, Path(file)))
    return found


def _loads(text: str) -> list[float]:
    try:
        loads = [float(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"--load {text}: expected numbers such as 0.5,1,1.5") from None
    for one in loads:
        positive({"--load": one})
    return loads


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
