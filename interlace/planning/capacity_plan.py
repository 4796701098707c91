"""The answer to a capacity question: a plan, what it promises, and how far from the best it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from interlace.core.hardware import Fleet
from interlace.core.plan import Partition, Plan, Slot
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes
from interlace.planning.expectation import Expectation, expect
from interlace.planning.scenario import Scenario
from interlace.policy.base import System
from interlace.policy.fewest import fewest, underserved


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A plan for a scenario by one system."""

    scenario: Scenario
    system: str
    plan: Plan
    fleet: Fleet
    bound: LowerBound
    expected: Mapping[str, Expectation]
    planning_s: float

    @property
    def gpus(self) -> int:
        """Accelerators in use."""
        return len({partition.gpu for partition in self.plan.partitions})

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Held on each GPU in use: weights and activations; behind walls, weights in each."""
        walls = {share for share, _ in self.scenario.gpu.walls}
        held: dict[str, int] = {}
        shared: dict[str, list[str]] = {}
        for part in self.plan.partitions:
            models = [slot.model for slot in part.slots]
            if part.share_pct in walls:
                bytes_here = needed_bytes(models, self.scenario.profiles)
                held[part.gpu] = held.get(part.gpu, 0) + bytes_here
            else:
                shared.setdefault(part.gpu, []).extend(models)
        for gpu, models in shared.items():
            held[gpu] = held.get(gpu, 0) + needed_bytes(models, self.scenario.profiles)
        return held

    def busy(self, part: Partition, slot: Slot) -> float:
        """The part of the partition's time that the slot's planned rate takes in full batches."""
        latency = surface(self.scenario.profiles[slot.model])
        run_ms = latency.latency_ms(slot.batch, part.share_pct)
        return slot.rows_per_s / slot.batch * run_ms / 1000.0

    @property
    def gap(self) -> float:
        """How many times the lower bound the plan uses; 1 is proven best."""
        return self.gpus / self.bound.gpus if self.bound.gpus else 1.0

    @property
    def cost_per_hour(self) -> float | None:
        """What the accelerators cost, if a price is known."""
        price = self.scenario.price_per_hour
        return None if price is None else price * self.gpus

    @property
    def served(self) -> bool:
        """True if nothing is left unserved."""
        return not underserved(self.plan)


def answer(scenario: Scenario, system: System, bound: LowerBound | None = None) -> CapacityPlan:
    """Plan the scenario with as few accelerators as this system needs."""
    demand, profiles = scenario.demand, scenario.profiles
    known = bound or lower_bound(demand, scenario.gpu, scenario.alone or profiles)
    began = perf_counter()
    plan, fleet = fewest(
        system.packer, demand, scenario.gpu, scenario.limit, profiles, start=known.gpus
    )
    took_s = perf_counter() - began
    expected = expect(plan, demand, {gpu.id: gpu for gpu in fleet.gpus}, profiles)
    return CapacityPlan(scenario, system.name, plan, fleet, known, expected, took_s)
