"""GPUs of plans on estimated profiles beside those on measured ones: scenarios of MIG slices.

Each model's profile is estimated from its graph and from what was measured of the other models
(ParvaGPU, A100). S1 to S3 are published, R1 and further are drawn by seed. The estimate may be off
by one GPU; at the slow end of its error interval a plan must not have fewer than are needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np

from bench.estimate import data as public
from bench.estimate.fit import Floats, Measured, fit, predict
from bench.estimate.run import HELD
from bench.harness import Report, Table, main
from bench.planning.a100 import GPU, Published, drawn_scenarios, scenarios
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import lower_bound
from interlace.perf.estimate import LawConstants, scaled
from interlace.perf.law_constants import LAWS
from interlace.planning.parallel import usable_cores
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.policy.catalog import CATALOG


def plans(
    data: Annotated[Path, "folder of the public data"],
    /,
    *,
    work: Annotated[Path, "work of models, one a line"] = Path("build/bench/work.jsonl"),
    drawn: Annotated[int, "scenarios drawn by seed"] = 6,
) -> Report:
    """GPUs by scenario: measured, estimated, and at the slow end of the estimate."""
    batches: dict[str, dict[int, list[Measured]]] = {}
    for name, share, batch in public.mig_batches(data, public.WorkCache(work)):
        batches.setdefault(name, {}).setdefault(share, []).append(batch)
    law = {name: _law_without(name, batches) for name in batches}
    slow = _slow_ends(batches, law)
    names, rows = [], []
    for one in [*scenarios(data / "a100-mig"), *drawn_scenarios(data / "a100-mig", drawn)]:
        central = {
            name: _estimated(profile, batches[name], law[name])
            for name, profile in one.profiles.items()
        }
        pessimistic = {name: scaled(profile, slow[name]) for name, profile in central.items()}
        names.append(one.name)
        rows.append([_gpus(one, each) for each in (one.profiles, central, pessimistic)])
        print(one.name, *rows[-1], flush=True)
    near = sum(abs(estimated - measured) <= 1 for measured, estimated, _ in rows)
    enough = sum(most >= measured for measured, _, most in rows)
    print(f"within one GPU: {near} of {len(rows)}; enough at the slow end: {enough} of {len(rows)}")
    heads = ("scenario", "measured", "estimated", "slow end")
    cells = [(name, *row) for name, row in zip(names, rows, strict=True)]
    figures = [dict(zip(heads, row, strict=True)) for row in cells]
    return Report((), tables=[Table(heads, cells)], figures=figures)


def _law_without(
    name: str, batches: Mapping[str, Mapping[int, Sequence[Measured]]]
) -> LawConstants:
    others = [
        one
        for other, of in batches.items()
        if other != name
        for those in of.values()
        for one in those
    ]
    return fit(others, LAWS["half"], held=HELD)


def _slow_ends(
    batches: Mapping[str, Mapping[int, Sequence[Measured]]], law: Mapping[str, LawConstants]
) -> dict[str, float]:
    """The 90th percentile of measured over estimated, by model: of all other models."""
    ratios: dict[str, Floats] = {}
    for name, of in batches.items():
        mine = [one for those in of.values() for one in those]
        ratios[name] = np.array([one.seconds for one in mine]) / predict(mine, law[name])
    return {
        name: float(np.quantile(np.concatenate([r for n, r in ratios.items() if n != name]), 0.9))
        for name in batches
    }


def _estimated(
    profile: Profile, batches: Mapping[int, Sequence[Measured]], law: LawConstants
) -> Profile:
    """The profile with estimated latencies at its points."""
    asked = [batches[share][0]._replace(rows=float(rows)) for rows, share in profile.points]
    ms = [1000 * float(seconds) for seconds in predict(asked, law)]
    points = {
        key: LatencyPoint(one, one, one, 0) for key, one in zip(profile.points, ms, strict=True)
    }
    return replace(profile, points=points)


def _gpus(one: Published, profiles: Mapping[str, Profile]) -> int:
    """The fewest GPUs of our planner."""
    bound = lower_bound(one.demand, GPU, profiles)
    scenario = Scenario(one.demand, GPU, profiles)
    found = search_plan(scenario, CATALOG["interlace"], bound.gpus, cores=usable_cores())
    return len({part.gpu for part in found.plan.partitions})


if __name__ == "__main__":
    main(plans)
