"""What features tell of unseen pairs when they are chosen without the pairs they are tested on.

Our base uses four features that were chosen on the pairs of icloud-ecnu/igniter; its error there is
therefore too low. Here each fold takes all features at hand, or chooses its own by leaving out
groups of what it learns from.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf, log, log2
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.planning.pairs import Measured, read
from bench.planning.prediction_errors import ErrorReport, Fold, report, unseen_models, unseen_pairs
from interlace.perf.slowdown.observation import Observation, Solos

_PENALTIES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)
_LITTLE = 0.01
#: A further feature must lower the inner squared error by this part.
_WORTH = 0.01

Floats = npt.NDArray[np.float64]


class Choice(NamedTuple):
    """Features by index, their penalty, and their squared error on inner groups left out."""

    error: float
    penalty: float
    features: tuple[int, ...]


def features(one: Observation, solos: Solos) -> list[float]:
    """Pressures, lengths, shares and batches of both sides, with ratios and products."""
    runner, other = one.runner, one.neighbours[0]
    own, its = solos(runner), solos(other)
    share = runner.share_pct / 100
    return [
        *(own.l2, its.l2, own.dram, its.dram, own.l2 * its.l2, own.dram * its.dram),
        *(min(1.0, its.alone_ms / own.alone_ms), min(1.0, own.alone_ms / its.alone_ms)),
        *(log(own.alone_ms / its.alone_ms), log2(runner.batch), log2(other.batch)),
        *(log((own.l2 + _LITTLE) / (its.l2 + _LITTLE)), share, (share - 0.5) ** 2),
        log((own.dram + _LITTLE) / (its.dram + _LITTLE)),
    ]


class Table:
    """Observations as features, slowdowns and groups of models."""

    def __init__(self, measured: Measured) -> None:
        self.features = np.array([features(one, measured.solos) for one in measured.seen])
        self.slowdowns = np.array([one.slowdown for one in measured.seen])
        groups = sorted({one.models for one in measured.seen}, key=sorted)
        self.group = np.array([groups.index(one.models) for one in measured.seen])

    def ridge(self, fold: Fold, chosen: Sequence[int], penalty: float) -> Floats:
        """Slowdowns of the fold's second half, learned from its first."""
        learned, out = (self.features[np.ix_(rows, chosen)] for rows in fold)
        truth = self.slowdowns[fold[0]]
        centre, scale, level = learned.mean(axis=0), learned.std(axis=0) + 1e-9, truth.mean()
        design = (learned - centre) / scale
        weight = penalty * len(truth) * np.eye(len(chosen))
        found = np.linalg.solve(design.T @ design + weight, design.T @ (truth - level))
        predicted: Floats = level + (out - centre) / scale @ found
        return predicted

    def tried(self, learned: Sequence[int], chosen: Sequence[int]) -> Choice:
        """The features at their best penalty, on groups left out of what is learned from."""
        rows = np.array(learned)
        folds = [
            (rows[self.group[rows] != group].tolist(), rows[self.group[rows] == group].tolist())
            for group in sorted(set(self.group[rows].tolist()))
        ]
        return min(
            Choice(
                sum(
                    float(((self.ridge(f, chosen, penalty) - self.slowdowns[f[1]]) ** 2).sum())
                    for f in folds
                ),
                penalty,
                tuple(chosen),
            )
            for penalty in _PENALTIES
        )

    def chosen(self, learned: Sequence[int]) -> Choice:
        """Features added one by one while they help on inner groups."""
        best = Choice(self.tried(learned, ()).error, inf, ())
        while left := set(range(self.features.shape[1])) - set(best.features):
            further = min(self.tried(learned, (*best.features, one)) for one in sorted(left))
            if further.error >= best.error * (1 - _WORTH):
                break
            best = further
        return best

    def errors(self, folds: Sequence[Fold], choose: bool) -> ErrorReport:
        """Errors of ridge on what was left out, with all features or each fold's choice."""
        everything = range(self.features.shape[1])
        predicted: list[float] = []
        for fold in folds:
            best = self.chosen(fold[0]) if choose else self.tried(fold[0], everything)
            predicted += self.ridge(fold, best.features, best.penalty).tolist()
        return report(predicted, [float(self.slowdowns[i]) for _, out in folds for i in out])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="clones of the sets")
    print("errors of latency in %, R2 of the slowdown")
    for folder in parser.parse_args().data:
        measured = read(folder)
        table = Table(measured)
        for split in (unseen_pairs, unseen_models):
            for choose, name in ((False, "all features"), (True, "chosen in each fold")):
                found = table.errors(split(measured.seen), choose)
                figures = f"p90 {100 * found.p90:5.2f} mape {100 * found.mape:5.2f}"
                print(f"{measured.name:8} {split.__name__:14} {name:20} {figures} {found.r2:6.3f}")


if __name__ == "__main__":
    main()
