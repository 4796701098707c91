"""Fit the constants of estimated latencies to public data, and check them on what was not fitted.

Prints the errors by split beside what is aimed at. ``--write`` puts the constants where the package
has them. The folder DATA holds timm/infer-rtx3090.csv and -rtx4090.csv (pytorch-image-models,
Apache-2.0), v100/latency.csv (GSLICE's logs, BSD) and a100-mig/profiles (ParvaGPU, MIT). Work of
timm's models is counted once and kept in ``--work``; ``--count`` counts those that are not there
(pip install timm; about a second a model).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np

from bench.estimate import data as public
from bench.estimate.fit import ALL, TENSOR_CORES, Floats, Measured, fit, predict
from bench.harness import Report, main
from bench.harness.report import Table
from interlace.perf.estimate import LawConstants
from interlace.perf.sizing import knee

OUT: Final = Path("interlace/perf/law_constants.py")
_FOLDS: Final = 4
#: How strongly few models' grids are held to the law of timm's many models.
HELD: Final = 1.0
#: Where the saving of Winograd's algorithm begins: less than the 2.25 of its products, for it adds
#: sums and copies, and not every convolution takes it.
_WINOGRAD: Final = 1.5


def estimate(
    data: Path,
    /,
    *,
    work: Annotated[Path, "work of models, one a line"] = Path("build/bench/work.jsonl"),
    count: Annotated[bool, "count timm models that are not known"] = False,
    write: Annotated[bool, "put the constants into the package"] = False,
) -> Report:
    """All splits, then the constants from all data."""
    cache = public.WorkCache(work)
    timm = {kind: public.timm_batches(data, kind, cache, count) for kind in public.TIMM}
    table = _Errors()
    known = _unseen_models(timm, table)
    unseen, other = _other_gpu(timm, table)
    half = fit([one for batches in timm.values() for one in batches])
    for kind in (
        one for one in public.UNFITTED if (data / "timm" / public.UNFITTED[one][0]).exists()
    ):
        batches = public.timm_batches(data, kind, cache, False)
        ratio, corrected = _unfitted(kind, batches, timm["rtx-4090"], half, table)
        unseen, other = np.concatenate([unseen, ratio]), np.concatenate([other, corrected])
    start = msgspec.structs.replace(half, winograd=_WINOGRAD)
    v100, mig = list(public.v100_batches(data, cache)), list(public.mig_batches(data, cache))
    left_out = [
        _leave_one_out("V100, batch x share", v100, start, ALL, table),
        _leave_one_out("A100-MIG, batch x share", mig, half, TENSOR_CORES, table),
    ]
    single = fit([one for *_, one in v100], start, held=HELD, free=ALL)
    if write:
        spread = {
            ("half", "graph"): 1 / known,
            ("half", "unseen"): 1 / unseen,
            ("half", "other_gpu"): 1 / other,
            ("single", "graph"): 1 / np.concatenate([one.whole for one in left_out]),
            ("any", "same_gpu"): 1 / np.concatenate([one.known for one in left_out]),
        }
        _write(half, single, spread, public.tail(data), {k: len(b) for k, b in timm.items()})
    return Report((), tables=[table.table()], figures=table.figures)


class _Errors:
    """Errors by split, beside what is aimed at."""

    def __init__(self) -> None:
        self.figures: list[dict[str, object]] = []

    def add(self, what: str, ratio: Floats, median: float | None, p90: float | None = None) -> None:
        error = np.abs(ratio - 1)
        self.figures.append(
            {
                "split": what,
                "batches": len(ratio),
                "median_pct": round(100 * float(np.median(error)), 1),
                "aim_pct": median,
                "p90_pct": round(100 * float(np.quantile(error, 0.9)), 1),
                "aim_p90_pct": p90,
            }
        )

    def table(self) -> Table:
        heads = ("split", "n", "median %", "aim", "90th %", "aim")
        return Table(heads, [list(one.values()) for one in self.figures])


def _ratio(batches: Sequence[Measured], law: LawConstants) -> Floats:
    """Estimated over measured."""
    found: Floats = predict(batches, law) / np.array([one.seconds for one in batches])
    return found


def _folds(batches: Sequence[Measured], key: Callable[[Measured], str]) -> list[set[str]]:
    names = sorted({key(one) for one in batches})
    random.Random(7).shuffle(names)
    return [set(names[fold::_FOLDS]) for fold in range(_FOLDS)]


def _family(one: Measured) -> str:
    """Models whose names begin alike are variants of each other."""
    return one.model.split("_")[0].rstrip("0123456789")


def _unseen_models(timm: Mapping[str, Sequence[Measured]], table: _Errors) -> Floats:
    """Each GPU's law on models, and families of models, that it was not fitted to.

    Estimated over measured, of the families.
    """
    families = []
    for kind, batches in timm.items():
        for what, key in (("models", lambda one: one.model), ("families", _family)):
            parts = []
            for fold in _folds(batches, key):
                law = fit([one for one in batches if key(one) not in fold])
                parts.append(_ratio([one for one in batches if key(one) in fold], law))
            table.add(f"{kind}: unseen {what}", np.concatenate(parts), 10, 25)
        families += parts
    return np.concatenate(families)


def _other_gpu(timm: Mapping[str, Sequence[Measured]], table: _Errors) -> tuple[Floats, Floats]:
    """A GPU that nothing was measured on; then with the model's time on the other one known.

    Estimated over measured, of both.
    """
    found, unseen = [], []
    for kind, batches in timm.items():
        others = [one for other, those in timm.items() if other != kind for one in those]
        parts, corrected = [], []
        for fold in _folds(others, _family):
            law = fit([one for one in others if _family(one) not in fold])
            mine = [one for one in batches if _family(one) in fold]
            ratio = _ratio(mine, law)
            parts.append(ratio)
            there = {one.model: one for one in others}
            both = [place for place, one in enumerate(mine) if one.model in there]
            known = _ratio([there[mine[place].model] for place in both], law)
            corrected.append(ratio[both] / known)
        unseen.append(np.concatenate(parts))
        table.add(f"unseen {kind}, unseen families", unseen[-1], 15)
        found.append(np.concatenate(corrected))
        table.add(f"{kind}, the model measured on the other", found[-1], 8)
    return np.concatenate(unseen), np.concatenate(found)


def _unfitted(
    kind: str,
    batches: Sequence[Measured],
    others: Sequence[Measured],
    law: LawConstants,
    table: _Errors,
) -> tuple[Floats, Floats]:
    """A GPU that no fit sees, in another layout of tensors; then with the time on another known."""
    ratio = _ratio(batches, law)
    table.add(f"{kind}, in no fit", ratio, 15)
    there = dict(zip((one.model for one in others), _ratio(others, law), strict=True))
    both = [place for place, one in enumerate(batches) if one.model in there]
    corrected = ratio[both] / np.array([there[batches[place].model] for place in both])
    table.add(f"{kind}, the model measured on the 4090", corrected, 8)
    return ratio, corrected


class _LeftOut(NamedTuple):
    """Estimated over measured, of models left out; then with one batch of each grid measured."""

    whole: Floats
    known: Floats


def _leave_one_out(
    what: str,
    batches: Sequence[tuple[str, int, Measured]],
    start: LawConstants,
    free: Sequence[int],
    table: _Errors,
) -> _LeftOut:
    """A model's whole grid, from the other models' grids; then its knees."""
    ratio: list[Floats] = []
    known: list[Floats] = []
    near = total = 0
    for model in sorted({one.model for *_, one in batches}):
        law = fit([one for *_, one in batches if one.model != model], start, held=HELD, free=free)
        mine = [row for row in batches if row[2].model == model]
        ratio.append(_ratio([one for *_, one in mine], law))
        table.add(f"{what}, without {model}", ratio[-1], 15)
        known += _one_known(mine, ratio[-1])
        steps = _knee_steps(mine, predict([one for *_, one in mine], law))
        near, total = near + sum(step <= 1 for step in steps), total + len(steps)
    table.add(f"{what}, all", np.concatenate(ratio), 15)
    table.add(f"{what}, one batch measured", np.concatenate(known), None)
    print(f"{what}: knee within one step for {near} of {total} (aim: 8 of 10)")
    return _LeftOut(np.concatenate(ratio), np.concatenate(known))


def _knee_steps(rows: Sequence[tuple[str, int, Measured]], seconds: Floats) -> list[int]:
    """How many measured shares lie between both knees, by model and batch."""
    grids: dict[tuple[str, float], dict[int, tuple[float, float]]] = {}
    for (name, share, one), ours in zip(rows, seconds, strict=True):
        grids.setdefault((name, one.rows), {})[share] = one.seconds, float(ours)
    found = []
    for grid in grids.values():
        shares = sorted(grid)
        if len(shares) > 2:
            ours, theirs = (knee({s: grid[s][way] for s in shares}) for way in (1, 0))
            found.append(abs(shares.index(ours) - shares.index(theirs)))
    return found


def _one_known(rows: Sequence[tuple[str, int, Measured]], ratio: Floats) -> list[Floats]:
    """Each grid's ratios when a batch of 8 on the whole GPU is measured."""
    found = []
    for name in sorted({name for name, *_ in rows}):
        mine = [place for place, row in enumerate(rows) if row[0] == name]
        known = [
            ratio[place] for place in mine if (rows[place][1], rows[place][2].rows) == (100, 8)
        ]
        if known:
            found.append(ratio[mine] / known[0])
    return found


def _write(
    half: LawConstants,
    single: LawConstants,
    spread: Mapping[tuple[str, str], Floats],
    tail: float,
    counts: Mapping[str, int],
) -> None:
    def law(one: LawConstants) -> str:
        fields = one.__struct_fields__
        return ", ".join(f"{name}={_rounded(getattr(one, name))!r}" for name in fields)

    intervals = {
        known: (round(float(np.quantile(of, 0.1)), 3), round(float(np.quantile(of, 0.9)), 3))
        for known, of in spread.items()
    }
    # Errors of the graph's law and of an unseen GPU are taken as independent.
    both = zip(intervals["single", "graph"], intervals["half", "unseen"], strict=True)
    low, high = (float(np.hypot(*np.log(pair))) for pair in both)
    intervals["single", "unseen"] = round(math.exp(-low), 3), round(math.exp(high), 3)
    models = ", ".join(f"{count} models on {kind}" for kind, count in counts.items())
    title = '"""Constants of the law in ``perf.estimate``, fitted by bench/estimate/run.py.'
    OUT.write_text(f'''{title}

Date: {date.today()}. Data: timm's inference results
({models};
PyTorch 2.4, FP16, large batches) for ``half``; from there, GSLICE's V100 grids
(TensorRT and CNTK, FP32) for ``single``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from interlace.perf.estimate import ErrorInterval, LawConstants

#: By precision: values of two bytes on tensor cores, or of four.
LAWS: Final[Mapping[str, LawConstants]] = MappingProxyType({{
    "half": LawConstants({law(half)}),
    "single": LawConstants({law(single)}),
}})
#: By precision, and what is known: the graph and other models on this kind of GPU, the graph alone
#: on a kind without measurements, points of the model on another GPU, points on this.
INTERVALS: Final[Mapping[tuple[str, str], ErrorInterval]] = MappingProxyType({{
    {", ".join(f"{known}: ErrorInterval{pair}" for known, pair in intervals.items())}
}})
#: A 99th percentile of latency over its median.
TAIL: Final = {tail:.3f}
#: Kinds with measurements of other models, by precision.
CHECKED_KINDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType({{
    "half": frozenset({{"rtx-3090", "rtx-4090"}}),
    "single": frozenset({{"v100", "a100-mig"}}),
}})
''')


def _rounded(value: float | tuple[float, ...]) -> float | tuple[float, ...]:
    if isinstance(value, tuple):
        return tuple(float(f"{one:.4g}") for one in value)
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main(estimate)
