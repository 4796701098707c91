"""How the models of a folder would share this machine, from stored profiles: nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.machine import cpu_settings, default_profiles, drafts, find_models
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError, UserError
from interlace.perf.cold_start import as_allowed
from interlace.perf.latency import surface
from interlace.planning.memory_plan import MemoryPlan, layered_models, tried_memory
from interlace.planning.plan_file import save_plan
from interlace.policy.base import System
from interlace.policy.catalog import system_of
from interlace.profiling.beside import NeighbourSlowdowns
from interlace.profiling.store import ProfileStore, SignatureStore
from interlace.repository.draft import Draft


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """One model's turn in one partition, with what is predicted of it.

    ``capacity_rows_per_s`` is the rate that fits beside the others, ``alone_rows_per_s`` what full
    batches would yield without turns of others; ``batch_ms`` is the latency (p95) of one such
    batch. ``duty_ms`` is 0 where turns follow from deadlines.
    """

    partition: str
    share_pct: int
    duty_ms: float
    model: str
    batch: int
    slo_ms: float
    batch_ms: float
    capacity_rows_per_s: float
    alone_rows_per_s: float


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """A plan for this machine. ``names`` are what people call the plan's models."""

    system: str
    gpu: Gpu
    plan: Plan
    slots: tuple[PlannedSlot, ...]
    names: Mapping[str, str]
    memory: MemoryPlan | None = None  #: where a budget was given
    left_out: tuple[str, ...] = ()  #: models that could not be planned for, and why

    @property
    def kept(self) -> bool:
        """Whether every model of the folder is planned for, with all of its rate and SLO."""
        broken = self.memory is not None and self.memory.broken
        return not (self.left_out or self.plan.unserved_rows_per_s or broken)

    def to_dict(self) -> dict[str, object]:
        """The plan as plain values: units in the names."""
        return {
            "slots": self.slots,
            "headroom": self.plan.headroom,
            "unserved_rows_per_s": {
                self.names[k]: v for k, v in self.plan.unserved_rows_per_s.items()
            },
            "reasons": {self.names[k]: why for k, why in self.plan.reasons.items()},
            "memory": self.memory,
            "left_out": self.left_out,
        }

    def save(self, path: Path) -> None:
        """Keep the plan in a file, for ``interlace serve --plan``.

        Raises:
            OSError: the file cannot be written.
        """
        partitions = tuple(map(self._public, self.plan.partitions))
        save_plan(path, self.system, self.gpu, replace(self.plan, partitions=partitions))

    def _public(self, part: Partition) -> Partition:
        """The partition by public names: versions of a model have one place together."""
        slots = {self.names[s.model]: replace(s, model=self.names[s.model]) for s in part.slots}
        return replace(part, slots=tuple(slots.values()))


@dataclass(frozen=True, slots=True)
class _ProfiledModel:
    """A model that was profiled, and what is asked of it."""

    name: str
    demand: Demand
    profile: Profile

    def asked(self, rates_rps: Mapping[str, float], slos_ms: Mapping[str, float]) -> Demand:
        """The demand, with what is said beside of its rate and SLO."""
        said = rates_rps.get(self.name)
        return replace(
            self.demand,
            rows_per_s=self.demand.rows_per_s if said is None else as_rows_per_s(said),
            slo_ms=slos_ms.get(self.name, self.demand.slo_ms),
        )


def plan_machine(
    models: Path,
    rates_rps: Mapping[str, float],
    slos_ms: Mapping[str, float],
    *,
    system: str | System = "interlace",
    device: str = "auto",
    gpus: str | None = None,
    cores: str | None = None,
    profiles: Path | None = None,
    memory_bytes: int | None = None,
) -> MachinePlan:
    """Plan a folder of models for this machine's first accelerator, or its cores.

    A model without a rate, here or in its interlace.toml, is given a small part of the machine, and
    the whole machine is shared out in proportion. Models whose folder cannot be read, and those
    without a profile, are left out, and the plan says so. With ``memory_bytes`` it also says what
    is kept of each, as it was tried.

    Raises:
        UserError: no model has a profile yet, or one that is named is not there; what to do. With
            ``memory_bytes``: as ``layered_models``.
        RepositoryError: there is no such folder of models.
    """
    row = system_of(system)
    there = choose_accelerators(device, cpu_settings(cores), gpus)
    fleet = Fleet(there.with_weights(memory_bytes or 0).gpus[:1])
    gpu = fleet.gpus[0]
    folders = find_models(models, ())
    for name in (*rates_rps, *slos_ms):
        if name not in {one.name for one in folders}:
            raise InputError(f"{models} has no model '{name}'")
    left_out: list[str] = []
    store = ProfileStore(profiles or default_profiles())
    known = _profiled(drafts(models, folders, left_out), models, store, gpu, left_out)
    demand = {one.demand.model: one.asked(rates_rps, slos_ms) for one in known}
    found = {one.demand.model: one.profile for one in known}
    names = {one.demand.model: one.name for one in known}
    asked = list(demand.values())
    layered = layered_models(asked, found, names, gpu) if memory_bytes else None
    made = _without_made_up_rates(row.planner(asked, fleet, found, Plan()), demand)
    slots = tuple(
        _slot(part, slot, demand[slot.model], found[slot.model], names[slot.model])
        for part in made.partitions
        for slot in part.slots
    )
    tried = tried_memory(layered, fleet, made, row) if layered is not None else None
    return MachinePlan(row.name, gpu, made, slots, names, tried, tuple(left_out))


def _without_made_up_rates(made: Plan, demand: Mapping[str, Demand]) -> Plan:
    """The plan, in which nothing is unserved of a model that has a place and no rate.

    One without a place is unserved at 0.
    """
    placed = {slot.model for part in made.partitions for slot in part.slots}
    unserved = {
        model: rate if demand[model].rows_per_s else 0.0
        for model, rate in made.unserved_rows_per_s.items()
        if demand[model].rows_per_s or model not in placed
    }
    hidden = made.unserved_rows_per_s.keys() - unserved.keys()
    reasons = {model: why for model, why in made.reasons.items() if model not in hidden}
    return replace(made, unserved_rows_per_s=unserved, reasons=reasons)


def _profiled(
    found: Iterable[Draft], root: Path, store: ProfileStore, gpu: Gpu, left_out: list[str]
) -> list[_ProfiledModel]:
    """Those of the models that can be planned for; the others go to ``left_out``, in words."""
    known, opened, missing = [], [], []
    kept = SignatureStore(store.folder / "signatures")
    for draft in found:
        model = draft.provisional()
        said = kept.find(model)
        if said is not None:
            model = replace(model, architecture=said.architecture)
        stored = store.recall(model, gpu)
        if stored is None:
            missing.append(draft.name)
            continue
        batch = draft.asked_batch or stored.max_batch
        demand = Demand(
            model.key, as_rows_per_s(model.terms.rate_rps or 0.0), model.terms.slo_ms, batch
        )
        try:
            allowed = as_allowed(stored.profile, model.terms)
        except ValueError as error:
            left_out.append(f"{draft.settings.where('memory.max_mb')}: found {error}")
            continue
        known.append(_ProfiledModel(draft.name, demand, allowed))
        opened.append(model)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        left_out.append(
            f"{names}: no profile on this device; `interlace profile {root}` measures it, or says "
            "why it cannot"
        )
    if not known:
        raise UserError(f"no model of {root} can be planned for: {'; '.join(left_out)}")
    alone = {one.demand.model: one.profile for one in known}
    busy = NeighbourSlowdowns(store.folder, gpu.kind).busy(opened, alone)
    return [replace(one, profile=busy[one.demand.model]) for one in known]


def _slot(part: Partition, slot: Slot, demand: Demand, profile: Profile, name: str) -> PlannedSlot:
    batch_ms = surface(profile).latency_ms(slot.batch, part.share_pct)
    return PlannedSlot(
        partition=part.id,
        share_pct=part.share_pct,
        duty_ms=part.duty_ms,
        model=name,
        batch=slot.batch,
        slo_ms=demand.slo_ms,
        batch_ms=batch_ms,
        capacity_rows_per_s=slot.rows_per_s,
        alone_rows_per_s=1000.0 * slot.batch / batch_ms,
    )
