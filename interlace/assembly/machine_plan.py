"""A folder of models and this machine's accelerator as a scenario, from stored profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.machine import cpu_settings, default_profiles, drafts, find_models
from interlace.core.model import Model
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError, UserError
from interlace.perf.cold_start import as_allowed
from interlace.planning.scenario import Scenario
from interlace.profiling.beside import NeighbourSlowdowns
from interlace.profiling.store import ProfileStore, SignatureStore
from interlace.repository.draft import Draft


def machine_scenario(
    models: Path,
    rates_rps: Mapping[str, float],
    slos_ms: Mapping[str, float],
    *,
    device: str = "auto",
    gpus: str | None = None,
    cores: str | None = None,
    profiles: Path | None = None,
    memory_bytes: int | None = None,
    prices_per_hour: Mapping[str, float] | None = None,
) -> Scenario:
    """The models of a folder on this machine's first accelerator, or its cores.

    Models that cannot be read, and those without a profile, are in ``left_out``, with the reason.
    Of several versions of a model the newest counts.

    Raises:
        UserError: no model has a profile yet, or one that is named is not there; what to do.
        RepositoryError: there is no such folder of models.
    """
    accelerators = choose_accelerators(device, cpu_settings(cores), gpus)
    gpu = accelerators.with_weights(memory_bytes or 0).gpus[0]
    folders = find_models(models, ())
    for name in (*rates_rps, *slos_ms):
        if name not in {one.name for one in folders}:
            raise InputError(f"{models} has no model '{name}'")
    left_out: list[str] = []
    store = ProfileStore(profiles or default_profiles())
    signatures = SignatureStore(store.folder / "signatures")
    known: dict[str, tuple[Demand, Model, Profile]] = {}
    missing: list[str] = []
    for draft in drafts(models, folders, left_out):
        model = _signed(draft, signatures)
        stored = store.recall(model, gpu)
        if stored is None:
            missing.append(draft.name)
            continue
        try:
            allowed = as_allowed(stored.profile, model.terms)
        except ValueError as error:
            left_out.append(f"{draft.settings.where('memory.max_mb')}: found {error}")
            continue
        demand = Demand(
            draft.name,
            as_rows_per_s(rates_rps.get(draft.name, model.terms.rate_rps or 0.0)),
            slos_ms.get(draft.name, model.terms.slo_ms),
            draft.asked_batch or stored.max_batch,
        )
        known[draft.name] = demand, model, allowed
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        left_out.append(
            f"{names}: no profile on this device; `interlace profile {models}` measures it, or "
            "says why it cannot"
        )
    if not known:
        raise UserError(f"no model of {models} can be planned for: {'; '.join(left_out)}")
    alone = {model.key: profile for _, model, profile in known.values()}
    opened = [model for _, model, _ in known.values()]
    busy = NeighbourSlowdowns(store.folder, gpu.kind).busy(opened, alone)
    return Scenario(
        tuple(demand for demand, _, _ in known.values()),
        gpu,
        {name: replace(busy[model.key], model=name) for name, (_, model, _) in known.items()},
        limit=1,
        price_per_hour=(prices_per_hour or {}).get(gpu.kind),
        as_given=True,
        left_out=tuple(left_out),
    )


def _signed(draft: Draft, signatures: SignatureStore) -> Model:
    """The model as its files describe it, with the architecture that was read when it was open."""
    model = draft.provisional()
    kept = signatures.find(model)
    return model if kept is None else replace(model, architecture=kept.architecture)
