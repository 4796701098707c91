"""Predictors of interference on public measured pairs of batches.

``--data`` names clones or git directories of icloud-ecnu/igniter (V100, 750 pairs both ways), on
which our features were chosen, and of 0909wlgur/Gpulet (3,675 observations), on which they were
not; nothing of them is kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

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

_SPLITS = {
    "known pairs": known_pairs,
    "unseen pairs": unseen_pairs,
    "unseen models": unseen_models,
}
_COLOURS = {"none": "#999999", "constant": "#e69f00", "linear": "#0072b2", "ours": "#009e73"}

Missed = tuple[list[float], list[float]]
#: Predicted and true slowdowns by split and predictor.
Results = Mapping[str, Mapping[str, Missed]]


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


def draw(by_set: Mapping[str, Results], path: Path) -> None:
    """The distribution of relative errors: a row for each set, a panel for each split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.4 + 3.0 * len(by_set)), layout="constrained")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _table(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    return {
        split: {name: report(*both)._asdict() for name, both in by_name.items()}
        for split, by_name in results.items()
    }


def _print(name_of_set: str, seen: Sequence[Observation], results: Results) -> None:
    print(f"{name_of_set}: {len(seen)} observations; errors of latency in %, R2 of the slowdown")
    for split, rows in _table(results).items():
        print(f"{split:14} {'p50':>6} {'p90':>6} {'p95':>6} {'mape':>6} {'R2':>7}")
        for name, row in rows.items():
            figures = " ".join(f"{100 * row[k]:6.2f}" for k in ("p50", "p90", "p95", "mape"))
            print(f"  {name:12} {figures} {row['r2']:7.3f}")
    won = wins(seen, results)
    print("unseen pairs with a lower mean error than the constant's:")
    print(
        "  " + ", ".join(f"{name} {won[name][0]} of {won[name][1]}" for name in ("linear", "ours"))
    )
    print("R2 within reach of names alone, fitted and tested on everything:")
    print("  " + ", ".join(f"{name} {r2:.3f}" for name, r2 in explained(seen).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="clones of the sets")
    parser.add_argument("--out", type=Path, help="folder for interference.json and .svg")
    asked = parser.parse_args()
    by_set: dict[str, Results] = {}
    for folder in asked.data:
        measured = read(folder)
        results = by_set[measured.name] = missed(measured.seen, measured.solos)
        _print(measured.name, measured.seen, results)
    if asked.out:
        draw(by_set, asked.out / "interference.svg")
        table = {name: _table(results) for name, results in by_set.items()}
        (asked.out / "interference.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
