"""Goodput against load, many loads at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from interlace.sim.arrivals import Workload, merge_arrivals
from interlace.sim.fast.build import stand
from interlace.sim.fast.queues import OK
from interlace.sim.fast.run import played
from interlace.sim.scenario import Simulation


class Point(NamedTuple):
    """One load: rows per second offered, and answered in time; ``attainment`` is their ratio."""

    load: float
    offered_rps: float
    goodput_rps: float
    attainment: float


def sweep(
    scenario: Simulation, workloads: Mapping[float, Mapping[str, Workload]], seeds: Sequence[int]
) -> list[Point]:
    """Play every load's workloads with every seed; the plan and its rounds stay the scenario's.

    ``workloads`` are by load, then by model. The trace of ``scenario`` gives the length alone.
    Points are in the order of ``workloads``, means over ``seeds``.
    """
    standing, seconds = stand(scenario), scenario.arrivals.seconds
    points: list[Point] = []
    for load, of_models in workloads.items():
        offered = good = 0
        for seed in seeds:
            arrivals = merge_arrivals(of_models, seconds, seed)
            offered += len(arrivals)
            outcomes = played(replace(scenario, arrivals=arrivals), standing).outcomes()
            good += int(outcomes[OK])
        time_s = seconds * len(seeds)
        points.append(Point(load, offered / time_s, good / time_s, good / max(1, offered)))
    return points
