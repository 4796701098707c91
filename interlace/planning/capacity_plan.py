"""The answer to a capacity question: a plan, what it promises, and how far from the best it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.json_text import json_text
from interlace.core.plan import Partition, Plan, Slot
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes
from interlace.planning.expectation import Expectation, expect
from interlace.planning.plan_file import save_plan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.systems import system_of
from interlace.policy.base import System
from interlace.policy.fewest import fewest

#: 2: what is not served is in rows per second, and called so.
_SCHEMA: Final = 2
_MOST_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """A plan for a scenario by one system.

    ``bound`` is how many accelerators any scheduler needs; ``expected`` what each planned model may
    expect under random arrivals.
    """

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
        return not self.plan.underserved

    @property
    def worst_attainment(self) -> float:
        """Expected attainment of the model that fares worst; 0 if one is not in the plan."""
        asked = [one.model for one in self.scenario.demand if one.rows_per_s > 0]
        within = (self.expected[m].attainment if m in self.expected else 0.0 for m in asked)
        return min(within, default=1.0)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Held on each GPU in use: weights and activations; behind walls, weights in each."""
        walls = {share for share, _ in self.scenario.gpu.walls}
        profiles = self.scenario.profiles
        held: dict[str, int] = {}
        shared: dict[str, list[str]] = {}
        for part in self.plan.partitions:
            models = [slot.model for slot in part.slots]
            if part.share_pct in walls:
                held[part.gpu] = held.get(part.gpu, 0) + needed_bytes(models, profiles)
            else:
                shared.setdefault(part.gpu, []).extend(models)
        for gpu, models in shared.items():
            held[gpu] = held.get(gpu, 0) + needed_bytes(models, profiles)
        return held

    def batch_ms(self, part: Partition, slot: Slot) -> float:
        """The latency of a full batch of the slot, beside busy neighbours."""
        latency = surface(self.scenario.busy_profiles[slot.model])
        return latency.latency_ms(slot.batch, part.share_pct)

    def busy(self, part: Partition, slot: Slot) -> float:
        """The part of the partition's time that the slot's planned rate takes in full batches."""
        return slot.rows_per_s / slot.batch * self.batch_ms(part, slot) / 1000.0

    def sentences(self) -> list[str]:
        """What is not served and why, the cost, the bound, the gap, and what was assumed."""
        unserved, reasons, bound = self.plan.unserved_rows_per_s, self.plan.reasons, self.bound
        cost = "" if self.cost_per_hour is None else f", {self.cost_per_hour:.2f} an hour"
        by = (
            f"by area {bound.area.accelerators:.2f}, by layouts "
            f"{bound.configuration.accelerators:.2f}, by memory {bound.memory.accelerators:.2f}"
        )
        said = [
            f"not served: {rps:.4g} requests/s of {model}: {reasons.get(model, 'no reason')}"
            for model, rps in unserved.items()
        ]
        said.append(
            f"{self.gpus} {self.scenario.gpu.kind} ({self.system}, planned in "
            f"{self.planning_s:.2f} s){cost}"
        )
        said.append(f"no scheduler needs fewer than {bound.gpus}: {by}; gap {self._gap_text()}")
        if bound.excluded:
            left_out = _some(bound.excluded)
            said.append(f"the bound leaves out what no share serves in time: {left_out}")
        return [*said, *self.plan.notes, *self.scenario.notes]

    def to_dict(self) -> dict[str, object]:
        """The answer as plain values: units in the names, ``None`` where a figure has no value."""
        bound = self.bound
        return {
            "schema": _SCHEMA,
            "system": self.system,
            "gpu": self.scenario.gpu.kind,
            "gpus": self.gpus,
            "lower_bound": {
                "gpus": bound.gpus,
                "area": bound.area.accelerators,
                "configuration": bound.configuration.accelerators,
                "memory": bound.memory.accelerators,
                "excluded": bound.excluded,
            },
            "gap": self.gap if self.served else None,
            "cost_per_hour": self.cost_per_hour,
            "planning_s": self.planning_s,
            "memory_bytes": self.memory_bytes,
            "partitions": self.plan.partitions,
            "models": {one.model: self._model(one.model) for one in self.scenario.demand},
            "unserved_rows_per_s": {
                k: _finite(v) for k, v in self.plan.unserved_rows_per_s.items()
            },
            "reasons": self.plan.reasons,
            "said": self.sentences(),
        }

    def to_json(self) -> str:
        """``to_dict`` as indented JSON."""
        return json_text(self.to_dict())

    def save(self, path: Path | str) -> None:
        """Keep the plan in a file, for ``interlace serve --plan`` and ``interlace.serve``.

        Raises:
            OSError: the file cannot be written.
        """
        save_plan(Path(path), self.system, self.scenario.gpu, self.plan)

    def _gap_text(self) -> str:
        if not self.served:
            return "not comparable, since part of the demand is not served"
        extra = self.gpus - self.bound.gpus
        return (
            "none: this is the fewest there can be" if extra <= 0 else f"{extra} ({self.gap:.2f}x)"
        )

    def _model(self, model: str) -> dict[str, object]:
        asked = next(one for one in self.scenario.demand if one.model == model)
        expected = self.expected.get(model)
        return {
            "rate_rps": asked.rows_per_s,
            "slo_ms": asked.slo_ms,
            "attainment_wanted": asked.attainment,
            "cv": asked.cv,
            "p99_ms": None if expected is None else _finite(expected.p99_ms),
            "attainment": None if expected is None else expected.attainment,
            "price_gpus_per_rps": self.bound.best.price.get(model),
        }


def plan(
    scenario: Scenario | Path | str,
    *,
    system: str | System = "interlace",
    bound: LowerBound | None = None,
) -> CapacityPlan:
    """The fewest accelerators that serve a scenario within its SLOs, and how each is cut.

    ``scenario`` may be the path of a scenario file (docs/planning.md). ``system`` says who plans: a
    name of the catalog, or a row of one's own. A ``bound`` that is known already, of the same
    scenario, is not worked out again. No accelerator is needed, and nothing is run.

    What cannot be served is no error: it is in ``plan.unserved_rows_per_s`` of the answer, its
    reason in ``plan.reasons``.

    Example::

        found = interlace.plan("examples/planning/nine.toml")
        print(found.gpus, found.bound.gpus, found.expected["vgg"].p99_ms)

    Raises:
        InputError: the file is not a scenario, or there is no such system; what is expected.
    """
    if not isinstance(scenario, Scenario):
        scenario = read_scenario(scenario)
    row = system_of(system)
    demand, profiles, gpu = scenario.demand, scenario.busy_profiles, scenario.gpu
    known = bound or lower_bound(demand, gpu, scenario.profiles)
    began_s = perf_counter()
    made, fleet = fewest(row.packer, demand, gpu, scenario.limit, profiles, start=known.gpus)
    took_s = perf_counter() - began_s
    expected = expect(made, demand, {one.id: one for one in fleet.gpus}, profiles)
    return CapacityPlan(scenario, row.name, made, fleet, known, expected, took_s)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
