"""Predictors of interference on public measured pairs of batches.

``--data`` names clones or git directories of icloud-ecnu/igniter (V100, 750 pairs both ways), on
which our features were chosen, and of 0909wlgur/Gpulet (3,675 observations), on which they were
not; nothing of them is kept.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from bench.harness import Report, Table, main
from bench.planning.linear_interference import fit_constant, fit_linear
from bench.planning.pairs import read
from bench.planning.prediction_errors import (
    Fitter,
    held_out,
    known_pairs,
    report,
    unseen_models,
    unseen_pairs,
)
from interlace.perf.interference import ConstantFactor
from interlace.perf.slowdown.learned import fit_learned
from interlace.perf.slowdown.observation import FromProfiles, Observation

_SPLITS = {"known pairs": known_pairs, "unseen pairs": unseen_pairs, "unseen models": unseen_models}
_COLOURS = {"none": "#999999", "constant": "#e69f00", "linear": "#0072b2", "ours": "#009e73"}

_ERRORS = ("p50", "p90", "p95", "mape")

Missed = tuple[list[float], list[float]]
#: Predicted and true slowdowns by split and predictor.
Results = Mapping[str, Mapping[str, Missed]]


def interference(*, data: Annotated[tuple[Path, ...], "clones of the sets"]) -> Report:
    """Errors of every predictor on every set."""
    by_set: dict[str, Results] = {}
    tables: list[Table] = []
    for folder in data:
        measured = read(folder)
        results = by_set[measured.name] = missed(measured.seen, measured.solos)
        tables += tables_of(measured.name, measured.seen, results)
    figures = {name: _errors_of(results) for name, results in by_set.items()}
    size = (10.0, 0.4 + 3.0 * len(by_set))
    return Report((), partial(_draw, by_set), size, tables=tables, figures=figures)


def tables_of(name: str, seen: Sequence[Observation], results: Results) -> list[Table]:
    """Errors by split; pairs that beat a constant; what names alone could explain."""
    title = f"{name}, {len(seen)} observations: errors of latency in %, R2 of the slowdown"
    cells = [
        (split, one, *(f"{100 * row[k]:.2f}" for k in _ERRORS), f"{row['r2']:.3f}")
        for split, rows in _errors_of(results).items()
        for one, row in rows.items()
    ]
    won = wins(seen, results)
    better = [(one, f"{won[one][0]} of {won[one][1]}") for one in ("linear", "ours")]
    known = [(one, f"{r2:.3f}") for one, r2 in explained(seen).items()]
    return [
        Table(("split", "predictor", *_ERRORS, "R2"), cells, title),
        Table(("unseen pairs with a lower mean error than the constant's", "pairs"), better),
        Table(("R2 within reach of names alone, fitted and tested on everything", "R2"), known),
    ]


def fitters(solos: FromProfiles) -> dict[str, Fitter]:
    """The predictors that are compared."""
    return {
        "none": lambda seen: ConstantFactor(1.0),
        "constant": fit_constant,
        "linear": partial(fit_linear, solos=solos),
        "ours": partial(fit_learned, solos=solos),
    }


def missed(seen: Sequence[Observation], solos: FromProfiles) -> dict[str, dict[str, Missed]]:
    """Predicted and true slowdowns of each predictor on each split."""
    return {
        split: {name: held_out(seen, folds(seen), fit) for name, fit in fitters(solos).items()}
        for split, folds in _SPLITS.items()
    }


def wins(seen: Sequence[Observation], results: Results) -> dict[str, tuple[int, int]]:
    """On how many of the left-out pairs, and of all, each has a lower mean error than a constant.

    Pairs of models are what varies between machines, not the hundreds of observations of each.
    """
    split = results["unseen pairs"]
    ends = np.cumsum([len(out) for _, out in unseen_pairs(seen)])[:-1]
    means = {
        name: [float(part.mean()) for part in np.split(_errors(both), ends)]
        for name, both in split.items()
    }
    flat = means["constant"]
    return {
        name: (sum(own < other for own, other in zip(mine, flat, strict=True)), len(flat))
        for name, mine in means.items()
    }


def _errors(both: Missed) -> npt.NDArray[np.float64]:
    predicted, truth = (np.array(side) for side in both)
    found: npt.NDArray[np.float64] = np.abs(predicted / truth - 1.0)
    return found


def explained(seen: Sequence[Observation]) -> dict[str, float]:
    """R2 of the best predictor that knows no more than names, fitted to what it is tested on.

    The gap between who runs beside whom and who runs, who is beside it, is what no sum of a
    model's sensitivity and its neighbour's aggressiveness can carry over to an unseen pair.
    """
    truth = np.array([one.slowdown for one in seen])
    runners = [one.runner.model for one in seen]
    others = [one.neighbours[0].model for one in seen]
    both = [f"{one} beside {other}" for one, other in zip(runners, others, strict=True)]
    asked = {"runner": [runners], "runner + neighbour": [runners, others], "pair": [both]}
    return {name: _explained(truth, known) for name, known in asked.items()}


def _explained(truth: npt.NDArray[np.float64], known: Sequence[Sequence[str]]) -> float:
    columns = [
        [float(value == level) for value in values]
        for values in known
        for level in sorted(set(values))
    ]
    design = np.array(columns).T
    fitted, *_ = np.linalg.lstsq(design, truth, rcond=None)
    return 1.0 - float(((design @ fitted - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def _draw(by_set: Mapping[str, Results], figure: Figure) -> None:
    """The distribution of relative errors: a row for each set, a panel for each split."""
    panels = figure.subplots(len(by_set), len(_SPLITS), sharey=True, squeeze=False)
    for row, (name_of_set, results) in zip(panels, by_set.items(), strict=True):
        end_pct = 100 * float(np.quantile(_errors(results["known pairs"]["none"]), 0.99))
        for panel, (split, by_name) in zip(row, results.items(), strict=True):
            for name, both in by_name.items():
                errors = np.sort(_errors(both)) * 100
                parts = np.arange(1, len(errors) + 1) / len(errors) * 100
                panel.plot(errors, parts, color=_COLOURS[name], label=name)
            panel.axhline(90, color="#cccccc", lw=0.8, zorder=0)
            panel.set(title=f"{name_of_set}: {split}", xlim=(0, end_pct), ylim=(0, 100))
            panel.set_xlabel("error of latency, %")
        row[0].set_ylabel("observations, %")
    panels[0][-1].legend(frameon=False, loc="lower right")


def _errors_of(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    return {
        split: {name: report(*both)._asdict() for name, both in by_name.items()}
        for split, by_name in results.items()
    }


if __name__ == "__main__":
    main(interference)
