"""`interlace simulate`: what a system would do with a scenario's requests, without any GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from interlace.cli.options import (
    FollowedPlan,
    Json,
    ScenarioFile,
    SystemName,
    check_output,
    positive,
)
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import FoldingTable, console
from interlace.core.figure_file import check_figure_path
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.rendering import json_text
from interlace.core.tables import counted
from interlace.core.user_errors import InputError
from interlace.planning.drawing import KINDS, draw_runs
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import SimulationResult, SimulationSettings, simulations
from interlace.policy.base import System
from interlace.policy.catalog import known_systems, system_of
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.sim.report import ModelReport, Report

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
    target: ScenarioFile,
    system: SystemName = "interlace",
    systems: _Systems = None,
    dispatcher: _Dispatcher = None,
    seconds: _Seconds = 20.0,
    load: _Load = "1",
    seed: _Seed = 0,
    seeds: _Seeds = 1,
    gpus: _Gpus = None,
    plan_file: FollowedPlan = None,
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


#: Student's t for a 95 % interval of so many runs.
_T95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
#: A table of more models than this shows those that fared worst.
_SHOWN: Final = 40


def show(out: Console, trial: SimulationResult) -> None:
    """One run: totals in a sentence, models in a table; of very many those that fared worst."""
    found = trial.report
    made = FoldingTable(
        ("model",),
        (
            "offered/s", "in time/s", "in SLO %", "refused %", "p50 ms", "p95 ms", "p99 ms",
            "p99.9 ms", "p99/SLO", "queue ms", "compute ms", "batch",
        ),
    )  # fmt: skip
    worst = sorted(found.models.items(), key=lambda pair: _fared(pair[1]))
    shown = dict(worst[:_SHOWN]) if len(worst) > _SHOWN else found.models
    for name, one in shown.items():
        refused = one.outcomes["refused"] + one.outcomes["expired"]
        taken = one.latency
        made.add_row(
            name,
            f"{one.offered_rps:.1f}",
            f"{one.goodput_rps:.1f}",
            f"{100 * one.attainment:.2f}",
            f"{100 * refused / one.requests:.2f}",
            f"{taken.p50_ms:.1f}",
            f"{taken.p95_ms:.1f}",
            f"{taken.p99_ms:.1f}",
            f"{taken.p999_ms:.1f}",
            f"{one.p99_over_slo:.2f}",
            f"{taken.queue_ms:.1f}",
            f"{taken.compute_ms:.1f}",
            f"{one.mean_batch:.1f}",
        )
    out.print(made)
    if len(shown) < len(found.models):
        out.print(
            f"the {len(shown)} of {len(found.models)} models that fared worst; --json has all"
        )
    if found.apps:
        out.print(_apps(found))
    for sentence in sentences(trial):
        out.print(sentence, soft_wrap=True)


def _apps(found: Report) -> Table:
    """Whole requests of apps; the tables of models count their stages."""
    made = FoldingTable(("app",), ("requests", "in time/s", "in SLO %", "p50 ms", "p99 ms"))
    for name, one in found.apps.items():
        made.add_row(
            name,
            str(one.requests),
            f"{one.goodput_rps:.1f}",
            f"{100 * one.attainment:.2f}",
            f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}",
        )
    return made


def sentences(trial: SimulationResult) -> list[str]:
    """Totals of a run, in words."""
    found = trial.report
    used = ", ".join(f"{gpu} {100 * part:.0f} %" for gpu, part in found.utilisation.items())
    cold = (
        [] if trial.cold_part is None else [f"cold: {100 * trial.cold_part:.2f} % of the requests"]
    )
    return [
        f"{trial.system}: {found.goodput_rps:.1f} of {found.offered_rps:.1f} requests/s in time "
        f"({100 * found.attainment:.2f} %), the worst model {100 * found.worst_attainment:.2f} %",
        *cold,
        f"{counted(trial.gpus, 'GPU')} in the plan, "
        f"{found.mean_gpus:.2f} held on average; used: {used}",
        f"no scheduler needs fewer than {trial.bound.gpus} for these rates, or keeps every SLO on "
        f"{len(trial.fleet.gpus)} above {trial.highest_load:.2f} times the scenario's rates",
        f"Jain's index {found.jain_service:.3f} over GPU time, {found.jain_attainment:.3f} over "
        f"attainment; largest service gap {found.service_gap_ms:.1f} ms of a GPU",
        f"latencies are of answered requests; {found.seconds:g} s of arrivals, "
        f"seed {trial.settings.seed}",
    ]


def show_compared(out: Console, trials: Mapping[str, Sequence[SimulationResult]]) -> None:
    """One line a system, best goodput first; several seeds as mean and 95 % interval."""
    made = FoldingTable(
        ("system",),
        (
            "GPUs", "bound", "in time/s", "of best other", "in SLO %", "worst model %", "p99/SLO",
            "refused %", "used %", "Jain", "gap ms",
        ),
    )  # fmt: skip
    means = {name: mean(t.report.goodput_rps for t in runs) for name, runs in trials.items()}
    for name, runs in sorted(trials.items(), key=lambda pair: -means[pair[0]]):
        others = [value for other, value in means.items() if other != name]
        reports = [trial.report for trial in runs]
        made.add_row(
            name,
            f"{mean(trial.gpus for trial in runs):g}",
            str(runs[0].bound.gpus),
            spread([one.goodput_rps for one in reports], 1),
            f"{means[name] / max(others):.3f}" if others and max(others) > 0 else "-",
            spread([100 * one.attainment for one in reports], 2),
            spread([100 * one.worst_attainment for one in reports], 2),
            spread([_worst_p99(one) for one in reports], 2),
            f"{100 * mean(_refused(one) for one in reports):.2f}",
            f"{100 * mean(one.mean_utilisation for one in reports):.0f}",
            f"{mean(one.jain_service for one in reports):.3f}",
            f"{mean(one.service_gap_ms for one in reports):.0f}",
        )
    out.print(made)


def spread(values: Sequence[float], digits: int) -> str:
    """A mean, and the half width of its 95 % interval where there are several values."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    half = _T95.get(len(values), 1.96) * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.{digits}f} ± {half:.{digits}f}"


def _fared(one: ModelReport) -> tuple[float, float]:
    return one.attainment, -one.p99_over_slo


def _worst_p99(found: Report) -> float:
    return max((one.p99_over_slo for one in found.models.values()), default=0.0)


def _refused(found: Report) -> float:
    lost = found.outcomes["refused"] + found.outcomes["expired"]
    return lost / found.requests if found.requests else 0.0
