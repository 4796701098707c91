"""How the models of a folder would share this machine, from stored profiles: nothing is run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
from interlace.planning.systems import system_of
from interlace.policy.base import System
from interlace.profiling.beside import NeighbourSlowdowns
from interlace.profiling.store import ProfileStore, SignatureStore

_log = logging.getLogger(__name__)


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
    the whole machine is shared out in proportion. Folders that cannot be read are
    logged and left out. With ``memory_bytes`` it also says what is kept of each, as it was tried.

    Raises:
        UserError: a model has no profile yet or is not there; what to do. With ``memory_bytes``:
            as ``layered_models``.
        RepositoryError: there is no such folder of models.
    """
    row = system_of(system)
    there = choose_accelerators(device, cpu_settings(cores), gpus)
    fleet = Fleet(there.with_weights(memory_bytes or 0).gpus[:1])
    gpu = fleet.gpus[0]
    known = _profiled(models, ProfileStore(profiles or default_profiles()), gpu)
    for name in (*rates_rps, *slos_ms):
        if name not in {one.name for one in known}:
            raise InputError(f"{models} has no model '{name}'")
    demand = {one.demand.model: one.asked(rates_rps, slos_ms) for one in known}
    found = {one.demand.model: one.profile for one in known}
    names = {one.demand.model: one.name for one in known}
    asked = list(demand.values())
    layered = layered_models(asked, found, names, gpu) if memory_bytes else None
    made = row.planner(asked, fleet, found, Plan())
    slots = tuple(
        _slot(part, slot, demand[slot.model], found[slot.model], names[slot.model])
        for part in made.partitions
        for slot in part.slots
    )
    tried = tried_memory(layered, fleet, made, row) if layered is not None else None
    return MachinePlan(row.name, gpu, made, slots, names, tried)


def _profiled(root: Path, store: ProfileStore, gpu: Gpu) -> list[_ProfiledModel]:
    known, opened, missing = [], [], []
    kept = SignatureStore(store.folder / "signatures")
    failures: list[str] = []
    for draft in drafts(root, find_models(root, ()), failures):
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
            failures.append(f"{draft.settings.where('memory.max_mb')}: found {error}")
            continue
        known.append(_ProfiledModel(draft.name, demand, allowed))
        opened.append(model)
    for failure in failures:
        _log.warning(failure)
    if missing:
        raise UserError(
            f"no profile of {', '.join(missing)} on this device; first: interlace profile {root}"
        )
    if not known:
        raise UserError(f"no model of {root} can be planned for")
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
