"""The clairvoyant optimum against trying everything, and no dispatcher above it."""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("numba", reason="numba is not installed: the optimum is compiled")

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.oracles.clairvoyant import fewest_drops

SLO_MS = 50.0
_MODEL = "model"


def gaps(count: int, seed: int) -> NDArray[np.float64]:
    """Poisson gaps of mean 1."""
    return np.random.default_rng(seed).exponential(1.0, count)


@dataclass(frozen=True)
class World:
    """``row`` and ``fixed`` are parts of the SLO; a load of 1 is batches that take all of it.

    One model on one GPU.
    """

    row: float
    fixed: float

    @property
    def largest(self) -> int:
        """Rows of the largest batch that ends within the SLO."""
        return int((1.0 - self.fixed) / self.row + 1e-9)

    @property
    def ceiling_rps(self) -> float:
        """(1 - fixed) / row: always in batches that take the whole SLO."""
        return (1.0 - self.fixed) / (self.row * SLO_MS / 1000.0)

    @cached_property
    def profile(self) -> Profile:
        """The line, measured without noise."""
        batches = sorted({*(2**k for k in range(10) if 2**k < self.largest), self.largest})
        points = {}
        for batch in batches:
            ms = (self.fixed + batch * self.row) * SLO_MS
            points[batch, 100] = LatencyPoint(ms, ms, ms, 1)
        return Profile(_MODEL, "", "line", 1, 1, points, load_ms=1.0)

    def served(self, system: System, gaps: NDArray[np.float64], load: float) -> dict[Outcome, int]:
        """How the requests of one trace end, by the engine that serves.

        ``gaps`` are of mean 1; the load scales them. Slots hold half-SLO batches, as plans do.
        """
        rate_rps = load * self.ceiling_rps
        times_ms = np.cumsum(gaps) * 1000.0 / rate_rps
        arrivals = Arrivals(
            (_MODEL,), times_ms, np.zeros(len(gaps), np.int32), times_ms[-1] / 1000.0 + 1e-3
        )
        demand = Demand(_MODEL, rate_rps, SLO_MS, self.largest)
        gpu = Gpu("gpu0", "line", 1, 10**9, (100,))
        slot = Slot(_MODEL, max(1, int((0.5 - self.fixed) / self.row)), rate_rps)
        plan = Plan((Partition("p", gpu.id, 100, (slot,)),))
        profiles = {_MODEL: self.profile}
        scenario = Simulation(
            system, Fleet((gpu,)), (demand,), profiles, profiles, arrivals, plan,
            warm_ms=1_000.0, epoch_ms=float("inf"),
        )  # fmt: skip
        ends = dict.fromkeys(Outcome, 0)
        for one in simulate(scenario).served:
            ends[one.outcome] += 1
        return ends


WORLD = World(0.05, 0.3)
ROW_MS, FIXED_MS = WORLD.row * SLO_MS, WORLD.fixed * SLO_MS


def _tried(times_ms: tuple[float, ...]) -> int:
    """Every choice of whom to give up and where to cut the rest into batches."""

    @cache
    def most(first: int, free_ms: float) -> int:
        if first == len(times_ms):
            return 0
        best = most(first + 1, free_ms)
        members: list[int] = []

        def extend(place: int) -> None:
            nonlocal best
            if members:
                start_ms = max(free_ms, times_ms[members[-1]])
                end_ms = start_ms + FIXED_MS + len(members) * ROW_MS
                if end_ms <= times_ms[members[0]] + SLO_MS:
                    best = max(best, len(members) + most(members[-1] + 1, end_ms))
            for later in range(place, len(times_ms)):
                members.append(later)
                extend(later + 1)
                members.pop()

        members.append(first)
        extend(first + 1)
        return best

    return len(times_ms) - most(0, 0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=7))
def test_the_program_finds_what_trying_everything_finds(steps: list[float]) -> None:
    times_ms = tuple(np.cumsum(steps).tolist())
    found = fewest_drops(np.array(times_ms), ROW_MS, FIXED_MS, SLO_MS, len(times_ms))
    assert found == _tried(times_ms)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("name", ["interlace", "gpulet", "temporal"])
def test_nobody_serves_more_than_who_knows_the_future(name: str, load: float) -> None:
    drawn = gaps(800, 1)
    times_ms = np.cumsum(drawn) * 1000.0 / (load * WORLD.ceiling_rps)
    fewest = fewest_drops(times_ms, ROW_MS, FIXED_MS, SLO_MS, 800)
    assert WORLD.served(resolve(name), drawn, load)[Outcome.OK] <= 800 - fewest
