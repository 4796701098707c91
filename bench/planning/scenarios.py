"""The 19,682 scenarios of gpulet (section 3.2; Figures 4, 15): who can schedule how many.

A scenario is a rate of 0, 100 or 200 requests/s for each of nine models; ``--loads`` multiplies
them. "exact" is the search over a lattice, a model's 200 requests/s split in ``--pieces``. The
paper's schedulers are asked every scenario. Ours is asked the largest scenarios of exact first: a
plan for more is a plan for less, so that those below one that it plans need not be asked.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np

from bench.harness import Report, Table, main
from bench.planning.gpulet_profiles import MODELS, profiles
from bench.planning.lattice import Bools, Lattice, closed, doubled, maximal, total
from bench.planning.schedulers import GPU, OURS, SCHEDULERS, demand, serves

_STEP_RPS: Final = 100.0
_LEVELS: Final = 3
_PROCESSES: Final = 2

Vector = tuple[int, ...]


def scenarios(
    *,
    loads: Annotated[tuple[float, ...], "factors on every rate"] = (1.0, 2.0),
    gpus: Literal[2, 4] = 4,
    pieces: Literal[2, 4] = 4,
    sample: Annotated[int, "scenarios asked; 0 for all"] = 0,
) -> Report:
    """How many scenarios each scheduler serves."""
    found = {load: counts(gpus, load, pieces, sample) for load in loads}
    names = list(found[loads[0]])
    cells = [(name, *(found[load][name] for load in loads)) for name in names]
    heads = ("scheduler", *(f"rates x{load:g}" for load in loads))
    return Report(tables=[Table(heads, cells)], figures=found)


class Question(NamedTuple):
    """One scheduler, a fleet of so many GPUs, all rates times ``load``."""

    scheduler: str
    gpus: int
    load: float

    def __call__(self, vector: Vector) -> bool:
        """True if the scheduler serves the scenario in full."""
        planner = {**SCHEDULERS, **OURS}[self.scheduler]
        asked = demand([_STEP_RPS * self.load * level for level in vector])
        return serves(planner, asked, self.gpus, profiles())


def exact(gpus: int, load: float, pieces: int) -> Bools:
    """Scenarios that four or two GPUs can serve, models split into pieces."""
    top = _STEP_RPS * (_LEVELS - 1) * load
    lattice = Lattice(demand([top] * len(MODELS)), profiles(), pieces)
    one = lattice.accelerator(GPU)
    return doubled(one if gpus == 2 else total(one, one), pieces // (_LEVELS - 1))


def every(sample: int) -> list[Vector]:
    """All scenarios but the empty one, or ``sample`` of them."""
    vectors = list(product(range(_LEVELS), repeat=len(MODELS)))[1:]
    if not sample or sample >= len(vectors):
        return vectors
    chosen = np.random.default_rng(0).choice(len(vectors), sample, replace=False)
    return [vectors[index] for index in sorted(chosen)]


def asked(question: Question, vectors: list[Vector]) -> Bools:
    """The scenarios that the scheduler serves, each asked for."""
    found = np.zeros((_LEVELS,) * len(MODELS), bool)
    with ProcessPoolExecutor(_PROCESSES) as pool:
        for vector, served in zip(
            vectors, pool.map(question.__call__, vectors, chunksize=64), strict=True
        ):
            found[vector] = served
    return found


def from_above(question: Question, limit: Bools) -> tuple[Bools, int]:
    """The scenarios below one that the scheduler serves, largest of ``limit`` first; how many were
    asked."""
    found, asked_count = np.zeros_like(limit), 0
    front: set[Vector] = {tuple(int(level) for level in row) for row in maximal(limit)}
    seen: set[Vector] = set()
    with ProcessPoolExecutor(_PROCESSES) as pool:
        while front:
            vectors = sorted(v for v in front if not found[v])
            seen.update(vectors)
            asked_count += len(vectors)
            served = list(pool.map(question.__call__, vectors, chunksize=4))
            for vector in (v for v, yes in zip(vectors, served, strict=True) if yes):
                found[vector] = True
            found = closed(found)
            lost = (v for v, yes in zip(vectors, served, strict=True) if not yes)
            front = {w for v in lost for w in _below(v) if w not in seen and not found[w]}
    return found, asked_count


def _below(vector: Vector) -> Iterable[Vector]:
    for axis, level in enumerate(vector):
        if level:
            yield (*vector[:axis], level - 1, *vector[axis + 1 :])


def counts(gpus: int, load: float, pieces: int, sample: int) -> dict[str, int]:
    """How many scenarios each scheduler serves."""
    vectors = every(sample)
    where = tuple(np.array(vectors).T)
    found: dict[str, int] = {}

    def counted(name: str, work: Callable[[], Bools]) -> Bools:
        began = time.perf_counter()
        served = work()
        found[name] = int(served[where].sum())
        took_s = time.perf_counter() - began
        part = found[name] / max(1, found.get("exact", found[name]))
        print(f"{load:5g} {name:22} {found[name]:6} {part:8.2%} {took_s:7.1f} s", flush=True)
        return served

    limit = counted("exact", lambda: exact(gpus, load, pieces))
    for name in SCHEDULERS:
        counted(name, lambda name=name: asked(Question(name, gpus, load), vectors))  # type: ignore[misc]
    for name in OURS:
        counted(name, lambda name=name: from_above(Question(name, gpus, load), limit)[0])  # type: ignore[misc]
    return found


if __name__ == "__main__":
    main(scenarios)
