"""One model on N equal accelerators, L(b) = fixed + b * row: the world of the comparison."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome
from interlace.policy.base import System
from interlace.sim.arrivals import Arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

SLO_MS = 50.0
_MODEL = "model"


def gaps(count: int, seed: int) -> NDArray[np.float64]:
    """Poisson gaps of mean 1."""
    return np.random.default_rng(seed).exponential(1.0, count)


@dataclass(frozen=True)
class World:
    """``row`` and ``fixed`` are parts of the SLO; a load of 1 is N batches that take all of it."""

    row: float
    fixed: float
    replicas: int = 1

    @property
    def largest(self) -> int:
        """Rows of the largest batch that ends within the SLO."""
        return int((1.0 - self.fixed) / self.row + 1e-9)

    @property
    def ceiling_rps(self) -> float:
        """N (1 - fixed) / row: every accelerator always in batches that take the whole SLO."""
        return self.replicas * (1.0 - self.fixed) / (self.row * SLO_MS / 1000.0)

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
        gpus = tuple(Gpu(f"gpu{i}", "line", 1, 10**9, (100,)) for i in range(self.replicas))
        slot = Slot(_MODEL, max(1, int((0.5 - self.fixed) / self.row)), rate_rps / self.replicas)
        plan = Plan(tuple(Partition(f"{gpu.id}.p", gpu.id, 100, (slot,)) for gpu in gpus))
        profiles = {_MODEL: self.profile}
        scenario = Simulation(
            system, Fleet(gpus), (demand,), profiles, profiles, arrivals, plan,
            warm_ms=1_000.0, epoch_ms=float("inf"),
        )  # fmt: skip
        ends = dict.fromkeys(Outcome, 0)
        for one in simulate(scenario).served:
            ends[one.outcome] += 1
        return ends
