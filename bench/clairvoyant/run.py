"""Highest load with 99 % in time, against perfect foresight.

One accelerator: the part of the clairvoyant optimum's load, on the same Poisson arrivals, by fixed
cost over SLO and row cost over SLO; beside it the part that a policy found by value iteration
reaches ("informed"), and what becomes of requests a little below our highest load. Several: the
part of the ceiling that no scheduler passes. Nothing is fitted to a run: the dispatcher knows the
profile and the rate.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import numpy as np

from bench.clairvoyant.online import Values, served, values
from bench.clairvoyant.optimum import fewest_drops
from bench.clairvoyant.worlds import SLO_MS, World
from bench.harness import Report, Table, interval, main
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve as row

#: Part of the requests that must end in time.
ATTAINMENT: Final = 0.99
#: Loads for which values are iterated, in one clairvoyant optimum's load.
_VALUED: Final = 50
#: Value iteration takes minutes where batches are larger than with this row cost.
_INFORMED_FROM: Final = 0.02
#: Of our highest load: where the ends of requests are counted.
_BELOW: Final = 0.97


def clairvoyance(
    *,
    systems: tuple[str, ...] = ("interlace",),
    rows: Annotated[tuple[float, ...], "cost of a row over the SLO"] = (0.01, 0.02, 0.03),
    fixed: Annotated[tuple[float, ...], "fixed cost over the SLO"] = (0.1, 0.2, 0.3, 0.4),
    replicas: Annotated[tuple[int, ...], "accelerators, beside one; 0 for none"] = (2, 4, 16),
    requests: Annotated[int, "of a run on one accelerator"] = 6_000,
    seeds: int = 5,
) -> Report:
    """Loads on one accelerator and on several."""
    found: list[dict[str, Any]] = []
    for row_part in rows:
        for part in fixed:
            found.append(single(World(row_part, part), systems, requests, seeds))
            print(json.dumps(found[-1]), flush=True)
            for count in filter(None, replicas):
                world = World(row_part, part, count)
                found.append(many(world, systems, requests * 5, seeds))
                print(json.dumps(found[-1]), flush=True)
    names = ("clairvoyant", "informed", *systems)
    cells = [
        [one["row"], one["fixed"], one.get("replicas", 1), *(_text(one.get(n)) for n in names)]
        for one in found
    ]
    heads = ("row / SLO", "fixed / SLO", "accelerators", *names)
    return Report(tables=[Table(heads, cells)], figures=found)


def _text(one: dict[str, float] | None) -> str | None:
    return None if one is None else f"{one['mean']:.3f} ± {one['half']:.3f}"


def highest(holds: Callable[[float], bool], low: float, high: float, steps: int = 9) -> float:
    """The highest load between the two at which something holds, by halving."""
    for _ in range(steps):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def gaps(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Poisson gaps of mean 1."""
    return np.random.default_rng(seed).exponential(1.0, count)


def clairvoyant(world: World, count: int, seed: int) -> float:
    """The highest load at which giving up 1 % is enough."""
    ticks = np.cumsum(gaps(count, seed))
    most = int(count * (1.0 - ATTAINMENT))
    row_ms, fixed_ms = world.row * SLO_MS, world.fixed * SLO_MS

    def holds(load: float) -> bool:
        times_ms = ticks * 1000.0 / (load * world.ceiling_rps)
        return int(fewest_drops(times_ms, row_ms, fixed_ms, SLO_MS, most)) <= most

    return highest(holds, 0.02, 1.0, 11)


def informed(world: World, count: int, best: list[float]) -> list[float]:
    """The highest load of each seed under value iteration, at most the clairvoyant's ``best``."""
    known: dict[float, Values] = {}
    ceiling = (1.0 - world.fixed) / world.row

    def holds(load: float, seed: int) -> bool:
        near = round(load / best[0] * _VALUED) / _VALUED * best[0]
        if near not in known:
            known[near] = values(world, near)
        return served(known[near], np.cumsum(gaps(count, seed)), load, ceiling) >= (
            ATTAINMENT * count
        )

    return [
        highest(lambda load, seed=seed: holds(load, seed), 0.4 * top, top)  # type: ignore[misc]
        for seed, top in enumerate(best)
    ]


def online(world: World, system: str, count: int, seed: int, most: float) -> float:
    """The highest load at which a system serves 99 % in time, up to ``most``."""
    system_row, drawn = row(system), gaps(count, seed)

    def holds(load: float) -> bool:
        return world.served(system_row, drawn, load)[Outcome.OK] >= ATTAINMENT * count

    return highest(holds, 0.0, most)


def single(world: World, systems: Sequence[str], count: int, seeds: int) -> dict[str, Any]:
    """Loads on one accelerator, in parts of the clairvoyant's."""
    best = [clairvoyant(world, count, seed) for seed in range(seeds)]
    found: dict[str, Any] = {"row": world.row, "fixed": world.fixed, "clairvoyant": _spread(best)}
    if world.row >= _INFORMED_FROM:
        found["informed"] = _spread(_parts(informed(world, count, best), best))
    for system in systems:
        loads = [online(world, system, count, seed, best[seed]) for seed in range(seeds)]
        found[system] = {**_spread(_parts(loads, best)), "ends": _ends(world, system, count, loads)}
    return found


def _parts(loads: list[float], best: list[float]) -> list[float]:
    return [one / top for one, top in zip(loads, best, strict=True)]


def _ends(world: World, system: str, count: int, loads: list[float]) -> dict[str, float]:
    """How requests end a little below the highest load: in time, refused at once, dropped."""
    ends: Counter[str] = Counter()
    for seed, load in enumerate(loads):
        for outcome, times in world.served(row(system), gaps(count, seed), _BELOW * load).items():
            ends[outcome.value] += times
    return {name: round(times / count / len(loads), 4) for name, times in ends.items() if times}


def many(world: World, systems: Sequence[str], count: int, seeds: int) -> dict[str, Any]:
    """Loads on many accelerators, in parts of the ceiling."""
    found: dict[str, Any] = {"row": world.row, "fixed": world.fixed, "replicas": world.replicas}
    for system in systems:
        loads = [online(world, system, count, seed, 1.0) for seed in range(seeds)]
        found[system] = _spread(loads)
    return found


def _spread(values: list[float]) -> dict[str, float]:
    found = interval(values)
    return {"mean": round(found.mean, 4), "half": round(found.half, 4)}


if __name__ == "__main__":
    main(clairvoyance)
