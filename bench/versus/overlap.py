"""Cut or overlap: what both serve, by the ratio of their headrooms (``Auto.worth``).

``--beside alike`` puts lanes of one width a model in the place of the cut.

D-STACK's workloads with latencies of several powers of the share below the knee, from those where
a cut is as good to those where it is far worse. Each is planned and played both ways; ``Auto``
takes partitions that overlap from a ratio of 1.15 on, of plans that fall short of the rates.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import mean
from typing import Annotated, Final, Literal

from bench.harness import Report, Table, main
from bench.papers.dstack.v100 import profiles
from bench.versus.run import played
from bench.versus.worlds import worlds
from interlace.core.plan import Plan
from interlace.policy.catalog import resolve
from interlace.policy.planners.auto import Auto
from interlace.policy.planners.overcommitted import Overcommitted

_HEADS: Final = (
    "overlapping / {}", "workload", "power", "load", "CV", "in time, {}", "overlapping",
    "worst model, {}", "overlapping",
)  # fmt: skip


def overlap(
    *,
    workloads: Annotated[tuple[str, ...], "of D-STACK"] = ("C-2", "C-3", "C-4", "C-7"),
    powers: Annotated[tuple[float, ...], "of knee / share below the knee"] = (0.0, 0.3, 0.6, 1.0),
    loads: Annotated[tuple[float, ...], "parts of the ceiling"] = (0.8, 1.1),
    cvs: tuple[float, ...] = (1.0, 3.0),
    beside: Annotated[Literal["cut", "alike"], "what it is compared with"] = "cut",
    seeds: int = 2,
    requests: Annotated[int, "of a run, in all"] = 2_000,
) -> Report:
    """A line for each case, sorted by the ratio of headrooms."""
    row, lines = resolve("interlace"), []
    ours = row.planner
    assert isinstance(ours, Auto) and isinstance(ours.overlapping, Overcommitted)
    other = replace(ours, worth=inf) if beside == "cut" else replace(ours.overlapping, dearer=0.0)
    for world in (w for w in worlds() if w.name in {f"D-STACK {name}" for name in workloads}):
        for power in powers:
            known = profiles(steep=power)
            one = replace(world, profiles={model: known[model] for model in world.profiles})
            for load, cv in ((load, cv) for load in loads for cv in cvs):
                demand = one.at(load * world.ceiling, cv)
                cut = other(demand, one.fleet, one.profiles, Plan())
                wide = ours.overlapping(demand, one.fleet, one.profiles, Plan())
                served, worst = [], []
                for plan in (cut, wide):
                    runs = list(played(row, one, demand, plan, seeds, requests))
                    served.append(mean(100 * r["goodput_rps"] / r["offered_rps"] for r in runs))
                    worst.append(mean(100 * r["worst"] for r in runs))
                ratio = (wide.headroom or 0.0) / (cut.headroom or inf)
                told = [f"{percent:.1f} %" for percent in (*served, *worst)]
                name = world.name.removeprefix("D-STACK ")
                lines.append((f"{ratio:.2f}", name, -1.0 - power, load, cv, *told))
    heads = tuple(head.format(beside) for head in _HEADS)
    return Report(tables=[Table(heads, sorted(lines))])


if __name__ == "__main__":
    main(overlap)
