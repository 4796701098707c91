"""The engine with DeepPlan's row on simulated V100 does what the paper's server does."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import pytest

from bench.papers.deepplan.links import SWITCH_OF
from bench.papers.deepplan.server import CAPACITY_BYTES, GPUS, serve, way_of
from bench.papers.deepplan.server import Request as ServerRequest
from bench.papers.deepplan.v100 import V100, layers, planned, waiting
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet
from interlace.core.loading import HostLinks
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.costs import MechanismCosts
from interlace.device.simulated.device import SimulatedDevice
from interlace.policy.catalog import resolve
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import ServedRequest
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

_MODEL = "bert_base"
_NO_COSTS = MechanismCosts(0.0, 0.0, 0.0)
_WARM_MS = 30_000.0


def _profile(name: str, way: str) -> Profile:
    """Layers as the server's pieces have them: what is copied waits for its event."""
    found = layers(_MODEL)
    links = V100.two_links if way == "deepplan" else HostLinks()
    known = tuple(waiting(found, planned(way, found, links)))
    total_ms = sum(one.run_ms for one in found)  # with all weights there nothing waits
    point = LatencyPoint(total_ms, total_ms, total_ms, 1)
    nbytes = sum(one.weights_bytes for one in known)
    return Profile(name, "", "v100", nbytes, 1, {(1, 100): point}, layers=known)


def _played(asked: list[tuple[float, int]], instances: int, way: str) -> list[ServedRequest]:
    names = [f"bert-{index:03}" for index in range(instances)]
    one = _profile("bert", way)
    profiles = {name: replace(one, model=name) for name in names}
    peers = 1 if way == "deepplan" else 0
    budget = CAPACITY_BYTES + way_of(_MODEL, way).nbytes - 1
    gpus = []
    for index in range(GPUS):
        switches = [SWITCH_OF[index], SWITCH_OF[(index + 2) % GPUS]][: peers + 1]
        links = HostLinks(peers, V100.nvlink_bytes_per_ms, names=tuple(map(str, switches)))
        kind = GPU_KINDS["v100"]
        gpus.append(
            replace(
                kind,
                id=f"gpu{index}",
                memory_bytes=budget + 10**6,
                shares_pct=(100,),
                weights_bytes=budget,
                links=links,
                traits=frozenset(),
            )
        )
    partitions = tuple(
        Partition(
            f"gpu{gpu}.p0",
            f"gpu{gpu}",
            100,
            tuple(Slot(name, 1, 1.0) for name in names[gpu::GPUS]),
        )
        for gpu in range(GPUS)
    )
    arrivals = Arrivals(
        tuple(names),
        np.array([at for at, _ in asked]),
        np.array([which for _, which in asked], dtype=np.int32),
        asked[-1][0] / 1000.0 + 1.0,
    )
    scenario = Simulation(
        replace(resolve("tfserving-nowait"), cold=COLD_POLICIES[way]),
        Fleet(tuple(gpus)),
        tuple(Demand(name, 1.0, 60_000.0, max_batch=1) for name in names),
        profiles,
        profiles,
        arrivals,
        Plan(partitions),
        device=partial(SimulatedDevice, costs=_NO_COSTS),
        warm_ms=_WARM_MS,
        epoch_ms=float("inf"),
    )
    return list(simulate(scenario).served)


def _asked(count: int, instances: int, rate_rps: float) -> list[tuple[float, int]]:
    drawn, at_ms, asked = random.Random(7), 0.0, []
    for _ in range(count):
        at_ms += drawn.expovariate(rate_rps / 1000.0)
        asked.append((at_ms, drawn.randrange(instances)))
    return asked


def _theirs(
    asked: list[tuple[float, int]], instances: int, way: str, since_ms: float = 0.0
) -> list[float]:
    requests = [ServerRequest(*one) for one in asked]
    known = dict.fromkeys(range(instances), way_of(_MODEL, way))
    served = serve(requests, known)
    return sorted(one.took_ms for one in served if one.request.at_ms >= since_ms)


def _times_ms(served: list[ServedRequest]) -> list[float]:
    return [one.answered_ms - one.arrived_ms for one in served]


@pytest.mark.parametrize("way", ["pipeswitch", "deepplan-dha", "deepplan"])
def test_one_cold_start_takes_as_long_as_the_papers_server_takes(way: str) -> None:
    """But for waits for events, which the engine's server has in profiles of cold runs alone."""
    asked = [(10.0, 0)]
    (ours_ms,) = _times_ms(_played(asked, 4, way))
    (theirs_ms,) = _theirs(asked, 4, way)
    assert ours_ms == pytest.approx(theirs_ms, rel=0.05)


@pytest.mark.parametrize(("others", "slower"), [((0, 1), 2.0), ((0, 2), 1.0)])
def test_loads_over_one_switch_disturb_each_other(others: tuple[int, int], slower: float) -> None:
    """Table 2: two GPUs on a switch have half of its bandwidth each, on two all of it."""
    (alone_ms,) = _times_ms(_played([(10.0, 0)], 4, "pipeswitch"))
    both_ms = _times_ms(_played([(10.0, one) for one in others], 4, "pipeswitch"))
    assert max(both_ms) / alone_ms == pytest.approx(slower, rel=0.12)


@pytest.mark.parametrize(("rate_rps", "least", "most"), [(30.0, 0.93, 1.02), (100.0, 0.85, 1.02)])
def test_many_instances_are_served_as_the_papers_server_serves_them(
    rate_rps: float, least: float, most: float
) -> None:
    """Figure 13's machine at 140 instances of BERT-Base, PT + DHA: its mean and its p99.

    Nearer to saturation ours is shorter: a GPU that loads goes on with what is warm.
    """
    asked = _asked(1600, 140, rate_rps)
    since_ms = asked[800][0]
    played = _played(asked, 140, "deepplan")
    ours = sorted(_times_ms([one for one in played if one.arrived_ms >= _WARM_MS + since_ms]))
    theirs = _theirs(asked, 140, "deepplan", since_ms)
    assert len(ours) == len(theirs) == 800
    assert least <= fmean(ours) / fmean(theirs) <= most
    assert least <= ours[791] / theirs[791] <= most
