"""The highest rate of each of gpulet's mixes that can be scheduled (Table 5, Figure 16).

python -m bench.planning.highest --gpus 4 [--out results]

All models of a mix have the same rate; each figure is relative to exhaustive search. One that ends
at its limit of steps says so: its rate is then one that can be had, not the highest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.planning.gpulet_profiles import profiles
from bench.planning.schedulers import GPU, MIXES, OURS, SCHEDULERS, mix
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Plan
from interlace.core.profile import Profile
from interlace.policy.base import Planner
from interlace.policy.planners.ideal import Ideal

_LOWEST_RPS: Final = 1.0
_TOP_RPS: Final = 1e5
_EXACTLY: Final = 1.001


def known(nine: Mapping[str, Profile] | None = None) -> dict[str, Profile]:
    """The nine models, and the six LeNets of the game."""
    nine = nine or profiles()
    copies = {f"le{i}": replace(nine["le"], model=f"le{i}") for i in range(1, 7)}
    return {**nine, **copies}


def highest_rps(planner: Planner, name: str, gpus: int) -> float:
    """The largest rate of a mix's models that the planner serves in full."""
    fitting, there = uniform_fleet(GPU, gpus), known()

    def serves(rate_rps: float) -> bool:
        return not planner(mix(name, rate_rps), fitting, there, Plan()).unserved_rows_per_s

    return largest_rps(serves)


def largest_rps(serves: Callable[[float], bool], exactly: float = _EXACTLY) -> float:
    """The largest rate for which ``serves`` is true, within 0.1 %.

    Found by doubling and halving, as if who serves a rate served all lower ones.
    """
    low = high = _LOWEST_RPS
    while high < _TOP_RPS and serves(high):
        low, high = high, high * 2.0
    while high / low > exactly:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4_000, help="of the exhaustive search")
    parser.add_argument("--out", type=Path, help="folder for highest.json")
    options = parser.parse_args()
    planners = {"ideal": Ideal(options.steps), **SCHEDULERS, **OURS}
    print(f"{'':22}" + "".join(f"{name:>9}" for name in MIXES) + f"{'mean':>9}")
    table: dict[str, dict[str, float]] = {}
    for scheduler, planner in planners.items():
        table[scheduler] = {n: highest_rps(planner, n, options.gpus) for n in MIXES}
        parts = [table[scheduler][n] / table["ideal"][n] for n in MIXES]
        cells = "".join(f"{part:9.1%}" for part in [*parts, sum(parts) / len(parts)])
        print(f"{scheduler:22}{cells}", flush=True)
    print(f"{'ideal, requests/s':22}" + "".join(f"{rate:9.0f}" for rate in table["ideal"].values()))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "highest.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
