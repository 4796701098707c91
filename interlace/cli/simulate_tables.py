"""Runs in tables: one run model by model, several systems side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Final

from rich.console import Console

from interlace.cli.screen import table
from interlace.core.tables import counted
from interlace.planning.simulation import SimulationResult
from interlace.sim.report import ModelReport, Report

#: Student's t for a 95 % interval of so many runs.
_T95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
#: A table of more models than this shows those that fared worst.
_SHOWN: Final = 40


def show(out: Console, trial: SimulationResult) -> None:
    """One run: totals in a sentence, models in a table; of very many those that fared worst."""
    found = trial.report
    made = table(
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
    for sentence in sentences(trial):
        out.print(sentence, soft_wrap=True)


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
    made = table(
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
