"""Our planner: a configuration program over patterns of turns, priced by column generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import ClassVar

import numpy as np

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.core.tables import counted
from interlace.packing.batch_options import BatchOptions, batch_options, demand_arrays
from interlace.packing.column_generation import (
    ColumnGeneration,
    PackingSolution,
    cheapest_gpus_per_rows_per_s,
)
from interlace.packing.deadline_order import DeadlinePricing
from interlace.packing.feasibility import feasible
from interlace.packing.layouts import Pattern, alike, layouts, shares
from interlace.packing.placement import (
    FilledGpu,
    PlacementInput,
    capacity,
    partitions,
    place,
    without_tiny_turns,
)
from interlace.packing.pools import PoolMemory, StandingPools, in_pools
from interlace.packing.queueing import Floats
from interlace.packing.single_model_capacity import alone_rows_per_s
from interlace.perf.memory import needed_bytes, room_bytes
from interlace.perf.tables import Tables

#: Served to within this part of the rate is served.
_ROUNDING = 1e-6
_TINY = 1e-300
#: How often models that are short are planned for more: by so many times what lacks, and a part.
_CORRECTIONS, _TIMES, _MORE = 4, 1.5, 2e-3

#: How many times what it serves now a partition of the current plan is asked for at most.
_SPARE = 2.0

#: A lower rate is packed as if it were this one: about a row a day.
_LEAST_ROWS_PER_S = 1e-5


@dataclass(frozen=True, slots=True)
class Patterns:
    """Fewest accelerators that serve every rate by deadline.

    A pattern is a share and a cycle of turns in it; a layout is a legal cut of one accelerator.
    The program picks how many of each so that layouts have a partition for every pattern and
    patterns serve every rate (Gilmore and Gomory's cutting stock, with shares for widths). A model
    in several partitions has one queue for all: further runs count on the replicas of the first,
    and their plans are kept only if they hold with those they have.

    Above ``apart`` models, the plan is models of like SLOs in pools of alike partitions
    (``packing.pools``). There only the layouts are a program. These models share one queue for
    several hosts, too. Pools are also the plan where they take at least two accelerators fewer.
    """

    frugal: ClassVar[bool] = True  #: the same plan for every fleet that is large enough
    apart: int = 24

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        known = feasible(demand, fleet, tables, waits=0.0)
        wanted = list(known.wanted)
        made = known.plan((), {}, {})
        for kind in alike(fleet.gpus):
            if not wanted:
                break
            part, left = self._packed(wanted, kind, tables, current)
            made = replace(
                made,
                partitions=(*made.partitions, *part.partitions),
                notes=(*made.notes, *part.notes),
            )
            wanted = left
        full = {one.model: one.rows_per_s for one in wanted}
        why = {one.model: self._why(one, fleet, tables) for one in wanted}
        return replace(
            made,
            unserved_rows_per_s={**made.unserved_rows_per_s, **full},
            reasons={**made.reasons, **why},
        )

    def _why(self, one: Demand, fleet: Fleet, tables: Tables) -> str:
        """Why part of a rate is unserved."""
        if not fleet.gpus:
            return "no accelerator"
        share_pct = max(fleet.gpus[0].shares_pct)
        options = batch_options([one], [tables.surface(one.model)], share_pct)
        most = float(alone_rows_per_s(options, demand_arrays([one])).max())
        if most == 0.0:
            return (
                f"its requests come so close together (cv {one.cv:g}) that {one.slo_ms:g} ms are "
                f"too short for {one.attainment:g} of them at any rate near the one asked for: "
                f"raise the SLO or promise fewer"
            )
        return (
            f"the accelerators are full: one that serves nothing else keeps {most:.4g} requests/s "
            f"of it within {one.slo_ms:g} ms; allow more accelerators or raise the SLO"
        )

    def _packed(
        self, demand: list[Demand], gpus: list[Gpu], tables: Tables, current: Plan
    ) -> tuple[Plan, list[Demand]]:
        """A plan for accelerators of one kind, and the demand that it leaves."""
        program = _PatternProgram(self, demand, gpus, tables, current)
        if not program.servable.all():
            able = [one for one, can in zip(demand, program.servable, strict=True) if can]
            rest = [one for one, can in zip(demand, program.servable, strict=True) if not can]
            if not able:
                return Plan(), rest
            plan, left = self._packed(able, gpus, tables, current)
            return plan, [*left, *rest]
        found = program.best()
        packed = [max(one.rows_per_s, _LEAST_ROWS_PER_S * (one.rows_per_s > 0)) for one in demand]
        chosen = without_tiny_turns(found.patterns, packed)
        homes, lost = place(
            chosen, gpus, found.layouts, PlacementInput(demand, tables.profiles, current)
        )
        offered = capacity([p for home in homes for p in home.patterns], len(demand))
        asked = np.array([one.rows_per_s for one in demand])
        served = np.minimum(offered, asked)
        served = np.where(served >= asked * (1 - _ROUNDING), asked, served)
        plan = Plan(
            partitions(homes, demand, served.tolist(), current), notes=_said(found, homes, lost)
        )
        left = [
            replace(one, rows_per_s=float(one.rows_per_s - rate))
            for one, rate in zip(demand, served, strict=True)
            if one.rows_per_s > rate
        ]
        return plan, left


class _PatternProgram:
    """One kind of accelerator, one demand: the program and its second run."""

    def __init__(
        self, policy: Patterns, demand: list[Demand], gpus: list[Gpu], tables: Tables, current: Plan
    ) -> None:
        self._policy = policy
        self._demand = demand
        self._limit = len(gpus)
        self._rates = np.array([max(one.rows_per_s, _LEAST_ROWS_PER_S) for one in demand])
        surfaces = [tables.surface(one.model) for one in demand]
        profiles = tables.profiles
        offered = shares(gpus[0], surfaces)
        self._layouts = layouts(gpus[0], offered)
        self._options = [
            self._within_walls(batch_options(demand, surfaces, s), gpus[0], profiles)
            for s in offered
        ]
        alone = self._problem(np.ones(len(demand)))
        self._worth = cheapest_gpus_per_rows_per_s(alone, len(demand))  #: whatever the queues
        self.servable = self._worth > 0
        self._least = ceil(float((self._worth * self._rates).sum()) - _ROUNDING)
        self._memory = PoolMemory.of(demand, gpus[0], self._layouts, profiles)
        self._current = [p for p in current.partitions if p.gpu in {g.id for g in gpus}]

    def _within_walls(self, options: BatchOptions, gpu: Gpu, profiles: Profiles) -> BatchOptions:
        """The options without models that the memory of such a partition does not hold."""
        most_bytes = dict(gpu.walls).get(options.share_pct, room_bytes(gpu))
        held = [needed_bytes([one.model], profiles, gpu) <= most_bytes for one in self._demand]
        return replace(
            options, latency_ms=np.where(np.array(held)[:, None], options.latency_ms, inf)
        )

    def best(self) -> PackingSolution:
        """The fewest accelerators, counting on replicas or not; the same for every limit that does
        not bind: it only says what is not worth a search."""
        many = len(self._demand) > self._policy.apart
        pools = self._pools() if many else None
        if pools:
            return pools
        program = self._generated(np.ones(len(self._demand)), self._rates)
        found = program.whole() if program.gpus <= self._limit else None
        fewest = min(found.accelerators if found else inf, self._limit + 1)
        found = self._with_replicas(fewest, program.amounts) or found
        least = found.accelerators if found else program.gpus
        # One accelerator more or fewer may be rounding, and the rule of pools is the coarser one.
        worthwhile = least > 2 and not many and self._least <= self._limit
        pools = self._pools() if worthwhile else None
        if pools and pools.accelerators < least - 1:
            found = pools
        return found if found and found.accelerators <= self._limit else program.within(self._limit)

    def _with_replicas(
        self, fewest: float, amounts: Mapping[Pattern, float]
    ) -> PackingSolution | None:
        """A plan of less than ``fewest`` accelerators that counts on the replicas of ``amounts``.

        It is one only if it holds with the replicas that it turns out to have: models that are
        short then count on those and are asked for more, a few times.
        """
        replicas, rates = self._replicas(amounts), self._rates
        if fewest <= self._least or (replicas <= 1).all():
            return None
        for _ in range(_CORRECTIONS):
            program = self._generated(replicas, rates)
            found = program.whole() if program.gpus < fewest else None
            if found is None or found.accelerators >= fewest:
                return None
            made, found = self._replicas(found.patterns), self._honest(found)
            short = found.unserved_rows_per_s
            if not short.any():
                return found
            replicas = np.where(short > 0, np.minimum(replicas, made), replicas)
            rates = rates * (1.0 + _TIMES * short / self._rates + _MORE * (short > 0))
        return None

    def _honest(self, found: PackingSolution) -> PackingSolution:
        """The patterns with what they serve given the replicas that they make."""
        problem = self._problem(self._replicas(found.patterns))
        real: Counter[Pattern] = Counter()
        for pattern, count in found.patterns.items():
            turns = problem.of(pattern.share_pct, pattern.turns, pattern.rows_per_s)
            # Where its turns would be late it serves nothing.
            real[turns or replace(pattern, rows_per_s=(0.0,) * len(pattern.rows_per_s))] += count
        served = capacity(list(real.elements()), len(self._demand))
        short = np.maximum(self._rates * (1 - _ROUNDING) - served, 0.0)
        return replace(found, patterns=real, unserved_rows_per_s=short)

    def _generated(self, replicas: Floats, rows_per_s: Floats) -> ColumnGeneration:
        problem = self._problem(replicas)
        kept = self._kept(problem)
        return ColumnGeneration(problem, rows_per_s, self._layouts, kept)

    def _pools(self) -> PackingSolution | None:
        options = {one.share_pct: one for one in self._options}
        arrays = replace(demand_arrays(self._demand), rows_per_s=self._rates)
        ask = partial(in_pools, options, arrays, self._layouts, self._memory, self._limit)
        kept = ask(StandingPools.of(self._demand, self._current)) if self._current else None
        return kept if kept and kept.accelerators <= self._limit else ask()

    def _problem(self, replicas: Floats) -> DeadlinePricing:
        return DeadlinePricing(self._options, demand_arrays(self._demand, replicas))

    def _kept(self, problem: DeadlinePricing) -> Counter[Pattern]:
        """Partitions of the current plan as patterns, at the most that they could serve."""
        index = {one.model: i for i, one in enumerate(self._demand)}
        kept: Counter[Pattern] = Counter()
        for part in self._current:
            known = [s for s in part.slots if s.model in index]
            if part.share_pct in problem.options and known and len(known) == len(part.slots):
                turns = [(index[s.model], s.batch) for s in known]
                rates = [_SPARE * max(s.rows_per_s, 1e-9) for s in known]
                pattern = problem.of(part.share_pct, turns, rates)
                if pattern is not None:
                    kept[pattern] += 1
        return kept

    def _replicas(self, amounts: Mapping[Pattern, float]) -> Floats:
        """Partitions of each model, those with little of its rate counting for little."""
        total, squares = np.zeros(len(self._demand)), np.zeros(len(self._demand))
        for pattern, times in amounts.items():
            for (model, _), rate in zip(pattern.turns, pattern.rows_per_s, strict=True):
                total[model] += times * rate
                squares[model] += times * rate**2
        return np.maximum(total**2 / np.maximum(squares, _TINY), 1.0)


def _said(
    found: PackingSolution, homes: Sequence[FilledGpu], lost: Sequence[Pattern]
) -> tuple[str, ...]:
    """How good the plan is known to be."""
    used = sum(bool(home.patterns) for home in homes)
    said = [f"{counted(used, 'accelerator')} by {found.said}"]
    if lost:
        said.append("some partitions found no accelerator with the share and the memory for them")
    return tuple(said)
