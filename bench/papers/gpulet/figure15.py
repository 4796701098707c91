"""Figure 15: scenarios that gpulet+int and the ideal scheduler can schedule on four GPUs.

The ideal tries every way to cut the GPUs with gpulet's own placement, as the released code does.
Left open: the latencies (shaped after Table 4 and Figure 3) and the interference (Figure 6's
law). As in Figure 4 four such GPUs serve nearly every scenario, so doubled rates are shown too;
the paper's scenarios lie between the two. A sample of the 19,682; the
page has --sample 600.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Annotated

from bench.harness import Report, Row, bars, main
from bench.papers.gpulet.law import LAW
from bench.papers.gpulet.trial import EveryCut
from bench.planning.gpulet_profiles import profiles
from bench.planning.scenarios import every
from bench.planning.schedulers import demand, serves
from interlace.policy.planners.gpulet import Gpulet

LOADS = (1.0, 1.5, 2.0)
#: Section 5.2: 520 of 19,682 scenarios fewer.
PUBLISHED_PCT = 2.6
_STEP_RPS = 100.0


def figure15(*, sample: Annotated[int, "scenarios asked"] = 120) -> Report:
    """How many scenarios each schedules."""
    found = counts(sample)
    rows: list[Row] = []
    for load, (total, ours, ideal) in found.items():
        name = f"rates x{load:g}, of {total}"
        fewer_pct = 100.0 * (ideal - ours) / total
        rows += [
            Row(f"{name}: gpulet+int", None, ours),
            Row(f"{name}: ideal", None, ideal),
            Row(f"{name}: fewer, of all", PUBLISHED_PCT, fewer_pct, " %"),
        ]
    series = {
        "ideal": [100.0 * i / t for t, _, i in found.values()],
        "gpulet+int": [100.0 * o / t for t, o, _ in found.values()],
    }
    groups = [f"rates x{load:g}" for load in found]
    return Report(rows, bars(groups, series, "schedulable, %"), (5.0, 3.0))


def served(load: float, vector: Sequence[int]) -> tuple[bool, bool]:
    """Whether gpulet+int serves a scenario, and whether the ideal does."""
    asked = demand([_STEP_RPS * load * level for level in vector])
    ours = serves(Gpulet(LAW), asked, 4, profiles())
    return ours, ours or serves(EveryCut(Gpulet(LAW)), asked, 4, profiles())


def counts(sample: int) -> dict[float, tuple[int, int, int]]:
    """By load: scenarios asked, served by gpulet+int, served by the ideal."""
    vectors, found = every(sample), {}
    with ProcessPoolExecutor(2) as pool:
        for load in LOADS:
            both = list(pool.map(partial(served, load), vectors, chunksize=8))
            found[load] = (len(both), sum(a for a, _ in both), sum(b for _, b in both))
    return found


if __name__ == "__main__":
    main(figure15)
