"""Predictors of interference on the measured V100 pairs of icloud-ecnu/igniter.

``--data`` is a clone or a git directory of that repository; nothing of it is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from interlace.core.profile import Point, Profile
from interlace.perf.interference import ConstantFactor, Runner
from interlace.perf.slowdown.learned import fit_learned
from interlace.perf.slowdown.linear import fit_linear
from interlace.perf.slowdown.observation import (
    Fitter,
    FromProfiles,
    Observation,
    fit_constant,
    from_profiles,
)
from interlace.perf.slowdown.report import (
    held_out,
    known_pairs,
    report,
    unseen_models,
    unseen_pairs,
)

_PATH = "i-Gniter/Profile/tools/gpulet.config"
_SPLITS = {
    "known pairs": known_pairs,
    "unseen pairs": unseen_pairs,
    "unseen models": unseen_models,
}
_COLOURS = {"none": "#999999", "constant": "#e69f00", "linear": "#0072b2", "ours": "#009e73"}

Missed = tuple[list[float], list[float]]


def read(data: Path) -> tuple[list[Observation], FromProfiles]:
    """The 750 pairs as 1,500 observations, and what each batch does alone."""
    merged: dict[str, Any] = {}
    for line in _text(data).splitlines():
        for key, value in (json.loads(line) if line.strip() else {}).items():
            merged.setdefault(key, {}).update(value)
    pairs = merged.pop("interference")["latency"]
    solos = from_profiles({model: _profile(model, kinds) for model, kinds in merged.items()})
    seen = []
    for first, second, batch, batch_2, share, ms, ms_2 in pairs:
        one, two = Runner(first, batch, share), Runner(second, batch_2, 100 - share)
        for runner, other, beside_ms in ((one, two, ms), (two, one, ms_2)):
            alone_ms = merged[runner.model]["latency"][str(runner.batch)][str(runner.share_pct)]
            seen.append(Observation(runner, (other,), beside_ms / alone_ms))
    return seen, solos


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


def draw(results: Mapping[str, Mapping[str, Missed]], path: Path) -> None:
    """The distribution of relative errors, one panel for each split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(results), sharey=True))
    for panel, (split, by_name) in zip(panels, results.items(), strict=True):
        for name, (predicted, truth) in by_name.items():
            errors = np.sort(np.abs(np.array(predicted) / np.array(truth) - 1.0)) * 100
            parts = np.arange(1, len(errors) + 1) / len(errors) * 100
            panel.plot(errors, parts, color=_COLOURS[name], label=name)
        panel.axhline(90, color="#cccccc", lw=0.8, zorder=0)
        panel.set(title=split, xlabel="error of latency, %", xlim=(0, 20), ylim=(0, 100))
    panels[0].set_ylabel("observations, %")
    panels[-1].legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _text(data: Path) -> str:
    if (data / _PATH).exists():
        return (data / _PATH).read_text()
    command = ["git", "-C", str(data), "show", f"HEAD:{_PATH}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _profile(model: str, kinds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Profile:
    latency, l2, dram = kinds["latency"], kinds["l2cache"], kinds["dram"]
    points, pressure = {}, {}
    for batch, by_share in latency.items():
        for share, ms in by_share.items():
            key = int(batch), int(share)
            points[key] = Point(ms, ms, ms, 1)
            if share in l2.get(batch, {}):
                pressure[key] = (l2[batch][share] / 100, dram[batch][share] / 100)
    return Profile(model, "igniter", "v100", 0, 0, points, pressure=pressure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="clone of icloud-ecnu/igniter")
    parser.add_argument("--out", type=Path, help="folder for interference.json and .svg")
    asked = parser.parse_args()
    seen, solos = read(asked.data)
    results = missed(seen, solos)
    table = {
        split: {name: report(*both)._asdict() for name, both in by_name.items()}
        for split, by_name in results.items()
    }
    print(f"{len(seen)} observations; errors of latency in %, R2 of the slowdown")
    for split, rows in table.items():
        print(f"{split:14} {'p50':>6} {'p90':>6} {'p95':>6} {'mape':>6} {'R2':>7}")
        for name, row in rows.items():
            figures = " ".join(f"{100 * row[k]:6.2f}" for k in ("p50", "p90", "p95", "mape"))
            print(f"  {name:12} {figures} {row['r2']:7.3f}")
    print("R2 within reach of names alone, fitted and tested on everything:")
    print("  " + ", ".join(f"{name} {r2:.3f}" for name, r2 in explained(seen).items()))
    if asked.out:
        draw(results, asked.out / "interference.svg")
        (asked.out / "interference.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
