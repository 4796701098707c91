"""Models over whole accelerators, as evenly as their work allows: where E2bird's engines stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, known_rate
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_WHOLE: Final = 100


@dataclass(slots=True, eq=False)
class _HostGpu:
    """One accelerator and the models on it."""

    gpu: Gpu
    models: list[str]
    load: float = 0.0


def spread(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """Every model on one accelerator, the most work first to where there is least; all are used.

    Accelerators that stay empty go to the models with the most work for each that they have. Work
    is rate over the best throughput alone: batches of all models share an accelerator in time, so
    what fits is work of 1. Rates in the plan are those asked for times ``headroom``, the largest
    factor that fits; the paper has one model an accelerator (section 8) and leaves this open.
    """
    tables = Tables(profiles)
    asked = feasible([known_rate(one, tables) for one in demand], fleet, tables, waits=0.0)
    work = {one.model: one.rows_per_s / _best_rows_per_s(one, tables) for one in asked.wanted}
    homes = [_HostGpu(gpu, []) for gpu in fleet.gpus]
    unplaced = _settle(work, homes, profiles)
    _fill(work, homes, profiles)
    hosts = {name: [home for home in homes if name in home.models] for name in work}
    factor = 1.0 / max((home.load for home in homes if home.load > 0), default=1.0)
    rows_per_s = {one.model: one.rows_per_s for one in asked.wanted}
    partitions = tuple(
        Partition(f"{home.gpu.id}:0", home.gpu.id, _WHOLE, slots)
        for home in homes
        if (slots := tuple(_slot(n, rows_per_s[n] * factor, hosts[n]) for n in home.models))
    )
    lost = {name: rows_per_s[name] for name in unplaced}
    reasons = dict.fromkeys(unplaced, "it does not fit in memory beside the others")
    if factor < 1.0 - 1e-9:
        short = {n: rate * (1 - factor) for n, rate in rows_per_s.items() if n not in lost}
        reasons |= dict.fromkeys(short, "the accelerators are full")
        lost |= short
    plan = asked.plan(partitions, lost, reasons)
    return Plan(plan.partitions, plan.unserved_rows_per_s, plan.reasons, headroom=factor)


def _slot(model: str, rows_per_s: float, hosts: Sequence[_HostGpu]) -> Slot:
    return Slot(model, 1, rows_per_s / len(hosts))


def _best_rows_per_s(one: Demand, tables: Tables) -> float:
    """The highest throughput of batches that end within the SLO."""
    latency = tables.surface(one.model)
    most = latency.largest_batch(one.slo_ms, _WHOLE, one.max_batch)
    return max(latency.throughput_rows_per_s(batch, _WHOLE) for batch in range(1, max(1, most) + 1))


def _settle(work: dict[str, float], homes: Sequence[_HostGpu], profiles: Profiles) -> list[str]:
    """Place each model; returns those that no accelerator has the memory for."""
    unplaced: list[str] = []
    for name in sorted(work, key=lambda model: (-work[model], model)):
        there = [home for home in homes if _within_memory(home, name, profiles)]
        if not there:
            unplaced.append(name)
            continue
        home = min(there, key=lambda one: one.load)
        home.models.append(name)
        home.load += work[name]
    return unplaced


def _fill(work: dict[str, float], homes: Sequence[_HostGpu], profiles: Profiles) -> None:
    """Replicate models on accelerators that have none."""
    copies = {name: sum(name in home.models for home in homes) for name in work}
    for empty in (home for home in homes if not home.models):
        fitting = [n for n, count in copies.items() if count and _within_memory(empty, n, profiles)]
        if not fitting:
            continue
        name = max(fitting, key=lambda model: (work[model] / copies[model], model))
        for home in homes:
            if name in home.models:
                home.load -= work[name] / copies[name] - work[name] / (copies[name] + 1)
        copies[name] += 1
        empty.models.append(name)
        empty.load = work[name] / copies[name]


def _within_memory(home: _HostGpu, model: str, profiles: Profiles) -> bool:
    return holds(home.gpu, [(_WHOLE, [*home.models, model])], profiles)
