"""How wrong a slowdown is: on pairs that were seen, on unseen pairs and on unseen models."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from interlace.perf.interference import Interference
from interlace.perf.slowdown.observation import Observation

#: Indices of the observations to learn from, and of those to be tested on.
Fold = tuple[list[int], list[int]]


class Fitter(Protocol):
    """Makes a predictor from what was seen."""

    def __call__(self, seen: Sequence[Observation]) -> Interference: ...


class ErrorReport(NamedTuple):
    """Relative errors of latency, as parts; ``r2`` is of the slowdown, 0 being its mean."""

    p50: float
    p90: float
    p95: float
    mape: float
    r2: float
    observations: int


def report(predicted: Sequence[float], seen: Sequence[float]) -> ErrorReport:
    """The errors of predicted slowdowns.

    Raises:
        ValueError: nothing was seen.
    """
    if not len(seen):
        raise ValueError("errors of no observation are not defined: see some first")
    truth = np.array(seen)
    missed = np.array(predicted) - truth
    relative = np.abs(missed) / truth
    p50, p90, p95 = (float(q) for q in np.quantile(relative, (0.5, 0.9, 0.95)))
    spread = float(((truth - truth.mean()) ** 2).sum())
    r2 = 1.0 - float((missed**2).sum()) / spread if spread > 0 else 0.0
    return ErrorReport(p50, p90, p95, float(relative.mean()), r2, len(truth))


def known_pairs(seen: Sequence[Observation], folds: int = 5) -> list[Fold]:
    """Every pair is learned from: observations are dealt to the folds, both sides of one together.

    Two observations of the same batches side by side are not split, since each tells the other.
    """
    names = sorted({_together(one) for one in seen})
    rank = {name: (index * 7919) % len(names) % folds for index, name in enumerate(names)}
    return [_fold(seen, [i for i, o in enumerate(seen) if rank[_together(o)] == k])
            for k in range(folds)]  # fmt: skip


def unseen_pairs(seen: Sequence[Observation]) -> list[Fold]:
    """Each set of models is left out in turn."""
    groups = sorted({one.models for one in seen}, key=sorted)
    return [_fold(seen, [i for i, o in enumerate(seen) if o.models == g]) for g in groups]


def unseen_models(seen: Sequence[Observation]) -> list[Fold]:
    """Each model is left out in turn, with everything that it took part in."""
    models = sorted({model for one in seen for model in one.models})
    return [_fold(seen, [i for i, o in enumerate(seen) if m in o.models]) for m in models]


def held_out(
    seen: Sequence[Observation], folds: Iterable[Fold], fit: Fitter
) -> tuple[list[float], list[float]]:
    """Slowdowns predicted for observations that were left out, and what was seen."""
    predicted: list[float] = []
    truth: list[float] = []
    for learned, out in folds:
        model: Interference = fit([seen[i] for i in learned])
        predicted += [model(seen[i].runner, seen[i].neighbours) for i in out]
        truth += [seen[i].slowdown for i in out]
    return predicted, truth


def _fold(seen: Sequence[Observation], out: Sequence[int]) -> Fold:
    left = set(out)
    return [i for i in range(len(seen)) if i not in left], list(out)


def _together(one: Observation) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted((r.model, r.batch, r.share_pct) for r in (one.runner, *one.neighbours)))
