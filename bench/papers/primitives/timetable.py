"""A timetable that repeats: which batch begins when in which share, and its play by the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from bench.papers.primitives.v100 import V100
from bench.playing import played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.policy.catalog import resolve
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import View
from interlace.sim.arrivals import Workload, merge_arrivals
from interlace.sim.pipeline.graph import Pipeline
from interlace.sim.record import RunRecord
from interlace.sim.workload.recorded import ReplayedTrace

#: From the end of a batch until those who wait for it have come: nothing, but for rounding.
HOP_MS: Final = 0.01
#: The engine drops what it believes will be late, and its beliefs waver by a percent.
SLACK_MS: Final = 1.0
_ROUNDING_MS: Final = 1e-6


class Entry(NamedTuple):
    """A batch of the timetable, ``begins_ms`` after its cycle began."""

    begins_ms: float
    model: str
    share_pct: int
    rows: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """A dispatcher: each entry begins once a cycle, at its time, with what is there of its rows."""

    entries: tuple[Entry, ...]
    cycle_ms: float

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        begun_ms = now_ms - (now_ms + _ROUNDING_MS) % self.cycle_ms
        launches: list[Launch] = []
        wake_ms = begun_ms + self.cycle_ms + HOP_MS
        homes = {slot.model: partition for partition in view.partitions for slot in partition.slots}
        for entry in self.entries:
            at_ms, home = begun_ms + entry.begins_ms, homes.get(entry.model)
            if now_ms < at_ms - _ROUNDING_MS:
                wake_ms = min(wake_ms, at_ms)
            elif home is None or not home.accepting or home.running is not None:
                continue
            elif home.last_start_ms(entry.model) < at_ms - HOP_MS and view.queue(entry.model).rows:
                launches.append(Launch(home.id, entry.model, entry.rows))
        return Dispatch(tuple(launches), wake_ms)


def follow(
    table: Timetable,
    profiles: Mapping[str, Profile],
    apps: Mapping[str, Pipeline],
    each_round: Mapping[str, Sequence[int]],
    round_ms: float,
    rounds: int,
) -> RunRecord:
    """Requests come in whole rounds: of each app or model so many in the 1st, 2nd, ... round,
    over and over. Every one has the round's length for its answer, and a little more before it is
    given up."""
    shares = {entry.model: entry.share_pct for entry in table.entries}
    parts = tuple(
        Partition(model, "gpu0", share, (Slot(model, 32, 1.0),)) for model, share in shares.items()
    )
    demand = tuple(Demand(model, 1.0, round_ms + SLACK_MS, 32) for model in shares)
    known = {model: profiles[model] for model in shares}
    traffic: dict[str, Workload] = {
        name: ReplayedTrace(
            np.repeat(np.arange(rounds) * round_ms, np.resize(counts, rounds)).astype(float)
        )
        for name, counts in each_round.items()
    }
    return played(
        replace(resolve("triton"), dispatcher=table),
        uniform_fleet(V100, 1),
        demand,
        known,
        merge_arrivals(traffic, rounds * round_ms / 1000.0, seed=0),
        Plan(parts, overlapping=True),
        warm_ms=100 * table.cycle_ms,
        pipelines=apps,
    )
