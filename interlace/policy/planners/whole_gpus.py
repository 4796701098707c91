"""Planners of whole accelerators, on which models take turns or overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.cuts import slots
from interlace.packing.feasibility import feasible, known_rate, with_least_rate
from interlace.perf.duty import CycleTurn, fit, shortest
from interlace.perf.memory import holds
from interlace.perf.sizing import Sizing
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

_HALVINGS: Final = 20


def time_shared(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """One partition of 100 % per accelerator, rates spread evenly (D-STACK section 6, temporal).

    If the rates do not fit, the largest common fraction of them that does is served.
    """
    tables = Tables(profiles)
    asked = feasible(demand, fleet, tables)
    kept = _held_together(asked.wanted, fleet.gpus, profiles)
    left_out = [one for one in asked.wanted if one not in kept]
    unserved = {one.model: one.rows_per_s for one in left_out}
    reasons = dict.fromkeys(unserved, "it does not fit in memory beside the others")
    if not kept:
        return asked.plan((), unserved, reasons)
    fraction, turns = _largest(kept, tables, len(fleet.gpus))
    cycle = fit(turns)
    if cycle is None:
        full = {one.model: one.rows_per_s for one in kept}
        why = "one row of each takes longer than the tightest SLO allows"
        return asked.plan((), full | unserved, dict.fromkeys(full, why) | reasons)
    each = slots(turns, cycle)
    parts = tuple(Partition(f"{gpu.id}:0", gpu.id, 100, each, cycle.duty_ms) for gpu in fleet.gpus)
    short = {one.model: one.rows_per_s * (1 - fraction) for one in kept if fraction < 1}
    return asked.plan(
        parts, short | unserved, dict.fromkeys(short, "the accelerators are full") | reasons
    )


def time_shared_packed(
    demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
) -> Plan:
    """The same on the first accelerators of the fleet, as few as leave no more unserved.

    Each has every model, so more of them is never worse: found by halving.
    """
    best = time_shared(demand, fleet, profiles, current)
    low, high = 0, len(fleet.gpus)
    while high - low > 1:
        middle = (low + high) // 2
        plan = time_shared(demand, Fleet(fleet.gpus[:middle]), profiles, current)
        if plan.unserved_rows_per_s == best.unserved_rows_per_s:
            best, high = plan, middle
        else:
            low = middle
    return best


def _held_together(
    wanted: Sequence[Demand], gpus: Sequence[Gpu], profiles: Profiles
) -> list[Demand]:
    """Those that fit together in the memory of each of these accelerators, in the order given."""
    kept: list[Demand] = []
    distinct = {(gpu.memory_bytes, gpu.walls): gpu for gpu in gpus}.values()
    for one in wanted:
        together = [(_WHOLE, [d.model for d in (*kept, one)])]
        if all(holds(gpu, together, profiles) for gpu in distinct):
            kept.append(one)
    return kept


def _largest(demand: Sequence[Demand], tables: Tables, count: int) -> tuple[float, list[CycleTurn]]:
    """The largest part of every rate that fits, and the turns of one accelerator."""

    def turns(part: float) -> list[CycleTurn]:
        return [tables.turn(one, one.rows_per_s * part / count, 100) for one in demand]

    if shortest(turns(1.0)) is not None:
        return 1.0, turns(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if shortest(turns(middle)) is None:
            high = middle
        else:
            low = middle
    return low, turns(low)


_WHOLE: Final = 100


def colocated(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """Uncut accelerators with all models on each, as servers without partitions have them.

    Whether the rates fit together is not checked; unserved is only what is too much for a model
    alone. Models beyond the memory are left out, those asked for last first.
    """
    tables = Tables(profiles)
    asked = feasible([with_least_rate(one) for one in demand], fleet, tables, waits=0.0)
    homes = {gpu.id: _held_together(asked.wanted, [gpu], profiles) for gpu in fleet.gpus}
    replicas = {one: sum(one in held for held in homes.values()) for one in asked.wanted}
    partitions = tuple(
        Partition(
            f"{gpu.id}:0",
            gpu.id,
            _WHOLE,
            tuple(
                Slot(one.model, one.max_batch, one.rows_per_s / replicas[one])
                for one in homes[gpu.id]
            ),
        )
        for gpu in fleet.gpus
    )
    lost = {one.model: one.rows_per_s for one, count in replicas.items() if not count}
    reasons = dict.fromkeys(lost, "no memory is left for it")
    for one, count in replicas.items():
        most_rows_per_s = count * tables.surface(one.model).throughput_rows_per_s(
            one.max_batch, _WHOLE
        )
        if count and one.rows_per_s > most_rows_per_s:
            lost[one.model] = one.rows_per_s - most_rows_per_s
            reasons[one.model] = "more than the accelerators serve if they run nothing else"
    return asked.plan(partitions, lost, reasons)


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Overlapping partitions: what runs at once is the dispatcher's choice (D-STACK section 6.1).

    With ``sizing`` a model's share and batch are those of highest efficacy, the share over-
    provisioned (section 5); where none meets the SLO it gets all of the accelerator, a row at a
    time. Without, every share is 100 %, as under MPS with no limits set, and the batch is
    ``batch`` or the largest the model takes. On several accelerators every model is on each
    (section 7.1), as far as memory goes; models of the highest load are placed first.

    Accelerators whose partitions are walls or slices cannot overlap them: ``otherwise`` is asked.
    """

    otherwise: Planner
    sizing: Sizing | None = None
    batch: int | None = None

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        if any(gpu.layouts or gpu.walls for gpu in fleet.gpus):
            return self.otherwise(demand, fleet, profiles, current)
        tables = Tables(profiles)
        asked = feasible([with_least_rate(one) for one in demand], fleet, tables, waits=0.0)
        wanted = sorted(asked.wanted, key=lambda d: (-_load(d, tables), d.model))
        homes = {gpu.id: _held_together(wanted, [gpu], profiles) for gpu in fleet.gpus}
        partitions = [
            self._partition(one, gpu, sum(one in held for held in homes.values()), tables)
            for gpu in fleet.gpus
            for one in homes[gpu.id]
        ]
        placed = {slot.model for partition in partitions for slot in partition.slots}
        lost = {d.model: d.rows_per_s for d in wanted if d.model not in placed}
        reasons = dict.fromkeys(lost, "no accelerator has the memory left for it")
        short = {
            d.model: _beyond_rows_per_s(d, partitions, tables) for d in wanted if d.model in placed
        }
        short = {model: rows_per_s for model, rows_per_s in short.items() if rows_per_s > 0}
        reasons |= dict.fromkeys(short, "more than its partitions serve if they run all the time")
        plan = asked.plan(tuple(partitions), lost | short, reasons)
        return Plan(
            plan.partitions,
            plan.unserved_rows_per_s,
            plan.reasons,
            session_ms=max((one.slo_ms for one in wanted), default=None),
            overlapping=True,
        )

    def _partition(self, one: Demand, gpu: Gpu, replicas: int, tables: Tables) -> Partition:
        share_pct, batch = self._size(one, gpu, tables)
        slot = Slot(one.model, batch, one.rows_per_s / replicas)
        return Partition(f"{gpu.id}:{one.model}", gpu.id, share_pct, (slot,))

    def _size(self, one: Demand, gpu: Gpu, tables: Tables) -> tuple[int, int]:
        if self.sizing is None:
            return _WHOLE, min(self.batch or one.max_batch, one.max_batch)
        latency = tables.surface(one.model)
        size = self.sizing(latency, one.slo_ms, gpu.shares_pct, one.max_batch)
        return (size.deployed_pct, size.batch) if size else (_WHOLE, 1)


def _beyond_rows_per_s(one: Demand, partitions: Sequence[Partition], tables: Tables) -> float:
    """The part of a rate that its partitions could not serve even if nothing else ran."""
    latency = tables.surface(one.model)
    most_rows_per_s = sum(
        latency.throughput_rows_per_s(slot.batch, partition.share_pct)
        for partition in partitions
        for slot in partition.slots
        if slot.model == one.model
    )
    return one.rows_per_s - most_rows_per_s


def _load(one: Demand, tables: Tables) -> float:
    """Accelerators that the model would keep busy alone."""
    most_rows_per_s = tables.saturated_rows_per_s(one, _WHOLE)
    return one.rows_per_s / most_rows_per_s if most_rows_per_s > 0 else 0.0


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
        there = [home for home in homes if _takes(home, name, profiles)]
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
        fitting = [n for n, count in copies.items() if count and _takes(empty, n, profiles)]
        if not fitting:
            continue
        name = max(fitting, key=lambda model: (work[model] / copies[model], model))
        for home in homes:
            if name in home.models:
                home.load -= work[name] / copies[name] - work[name] / (copies[name] + 1)
        copies[name] += 1
        empty.models.append(name)
        empty.load = work[name] / copies[name]


def _takes(home: _HostGpu, model: str, profiles: Profiles) -> bool:
    return holds(home.gpu, [(_WHOLE, [*home.models, model])], profiles)
