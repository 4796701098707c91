"""What a scheduler could do that preempts every kernel (D-STACK section 6.2, equations 13, 14)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final, NamedTuple

from interlace.packing.solver import Constraint, LinearProgram, solve

#: Sets of kernels side by side beyond which the program is too large to be worth it.
_MOST_SETS: Final = 50_000


class Kernel(NamedTuple):
    """One kernel of a model: its knee, and its time at that share."""

    share_pct: float
    run_ms: float


@dataclass(frozen=True, slots=True)
class IdealSchedule:
    """Part of the accelerator in use, 0..1, and inferences per second of each model."""

    utilisation: float
    rows_per_s: Mapping[str, float]


def ideal_bound(
    kernels: Mapping[str, Sequence[Kernel]], mix: Mapping[str, float] | None = None
) -> IdealSchedule:
    """What no schedule of one instance per model can pass, kernels preempted at no cost.

    A linear program over the sets of kernels that fit side by side, at most one of each model:
    each set runs for a part of the time, and every kernel of a model has its time in proportion to
    the model's rate. That the kernels have an order (equation 14) is left out, so it is a bound.
    With a ``mix``, all rates in that proportion are as high as they can be; without one,
    utilisation is (equation 13), whoever gets it.

    Raises:
        ValueError: a kernel needs more than the accelerator or no time, or there are too many sets.
    """
    models = sorted(kernels)
    check_kernels(kernels)
    sets = [one for one in _sets(kernels, models) if any(k is not None for k in one)]
    used = [_used(kernels, models, one) / 100.0 for one in sets]
    count = len(sets)
    rows = [Constraint(tuple(range(count)), (1.0,) * count, 0.0, 1.0)]
    for column, model in enumerate(models):
        for index, kernel in enumerate(kernels[model]):
            here = [i for i, one in enumerate(sets) if one[column] == index]
            indices = (*here, count + column)
            values = (*(1.0 for _ in here), -kernel.run_ms / 1000.0)
            rows.append(Constraint(indices, values, 0.0, 0.0))
    cost = [-u for u in used] + [0.0] * len(models)
    if mix is not None:
        cost = [0.0] * count + [-1.0] + [0.0] * (len(models) - 1)
        rows += [
            Constraint((count, count + i), (mix[model], -mix[models[0]]), 0.0, 0.0)
            for i, model in enumerate(models[1:], 1)
        ]
    width = count + len(models)
    found = solve(LinearProgram(cost, [0.0] * width, [1e12] * width, [False] * width, rows))
    busy = sum(part * u for part, u in zip(found.values, used, strict=False))
    return IdealSchedule(busy, dict(zip(models, found.values[count:], strict=True)))


def _sets(
    kernels: Mapping[str, Sequence[Kernel]], models: Sequence[str]
) -> list[tuple[int | None, ...]]:
    count = prod(len(kernels[model]) + 1 for model in models)
    if count > _MOST_SETS:
        raise ValueError(f"{count} sets of kernels; at most {_MOST_SETS}: take fewer models")
    choices = [(None, *range(len(kernels[model]))) for model in models]
    return [one for one in product(*choices) if _used(kernels, models, one) <= 100.0 + 1e-9]


def _used(
    kernels: Mapping[str, Sequence[Kernel]], models: Sequence[str], one: Sequence[int | None]
) -> float:
    pairs = zip(models, one, strict=True)
    return sum(kernels[model][k].share_pct for model, k in pairs if k is not None)


def check_kernels(kernels: Mapping[str, Sequence[Kernel]]) -> None:
    """Every model has kernels, and each fits an accelerator and takes some time.

    Raises:
        ValueError: it is not so.
    """
    if not kernels:
        raise ValueError("an ideal schedule needs at least one model")
    for model, ones in kernels.items():
        if not ones or any(not (0 < k.share_pct <= 100 and k.run_ms > 0) for k in ones):
            raise ValueError(f"kernels of {model}: expected shares in (0, 100] % and times above 0")
