"""A folder of models and this machine's accelerator as a scenario, from stored profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from interlace.apps.graph import read_ensemble
from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.machine import cpu_settings, default_profiles, drafts, find_models
from interlace.control.ensembles import ensemble_slo_ms
from interlace.control.model_preparer import with_assumed_slo
from interlace.core.errors import RepositoryError
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError, UserError
from interlace.perf.cold_start import as_allowed
from interlace.planning.app_demand import AppLoad
from interlace.planning.scenario import Scenario
from interlace.profiling.corun import NeighbourSlowdowns
from interlace.profiling.store import ProfileStore, SignatureStore
from interlace.repository.folder import ModelFolder


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
    known = _profiled(models, folders, store, gpu, left_out)
    alone = {one.model.key: one.profile for one in known.values()}
    busy = NeighbourSlowdowns(store.folder, gpu.kind).busy([m.model for m in known.values()], alone)
    demand = _demand(known, rates_rps, slos_ms)
    apps = {
        name: app.asked(rates_rps.get(name), slos_ms.get(name))
        for name, app in _apps(models, folders, known, left_out).items()
    }
    return Scenario(
        demand,
        gpu,
        {name: replace(busy[one.model.key], model=name) for name, one in known.items()},
        limit=1,
        price_per_hour=(prices_per_hour or {}).get(gpu.kind),
        as_given=True,
        left_out=tuple(left_out),
    ).with_apps(apps)


def _demand(
    known: Mapping[str, _ProfiledModel],
    rates_rps: Mapping[str, float],
    slos_ms: Mapping[str, float],
) -> tuple[Demand, ...]:
    return tuple(
        Demand(
            name,
            as_rows_per_s(rates_rps.get(name, one.model.terms.rate_rps or 0.0)),
            slos_ms.get(name, one.model.terms.slo_ms),
            one.max_batch,
        )
        for name, one in known.items()
    )


def _apps(
    models: Path,
    folders: Sequence[ModelFolder],
    known: Mapping[str, _ProfiledModel],
    left_out: list[str],
) -> dict[str, AppLoad]:
    """The apps of a folder; ``left_out`` gets those that have an unknown member."""
    found = {}
    for draft in drafts(models, folders, [], ensembles=True):
        try:
            app = read_ensemble(draft)
        except RepositoryError as error:
            left_out.append(f"{draft.name}: {error}")
            continue
        missing = [model for model in app.members if model not in known]
        if missing:
            left_out.append(f"{draft.name}: '{missing[0]}' cannot be planned for as its stage")
        else:
            slo_ms = ensemble_slo_ms(draft, [known[model].model for model in app.members])
            found[draft.name] = AppLoad(app, draft.terms.rate_rps or 0.0, slo_ms)
    return found


class _ProfiledModel(NamedTuple):
    """A model with its profile alone on this accelerator."""

    model: Model
    profile: Profile
    max_batch: int


def _profiled(
    models: Path,
    folders: Sequence[ModelFolder],
    store: ProfileStore,
    gpu: Gpu,
    left_out: list[str],
) -> dict[str, _ProfiledModel]:
    """The models that have a profile, by name; ``left_out`` gets the others, with the reason."""
    known: dict[str, _ProfiledModel] = {}
    missing: list[str] = []
    signatures = SignatureStore(store.folder / "signatures")
    for draft in drafts(models, folders, left_out):
        model = draft.provisional()
        if signed := signatures.find(model):
            model = replace(model, architecture=signed.architecture)
        stored = store.recall(model, gpu)
        if stored is None:
            missing.append(draft.name)
            continue
        try:
            allowed = as_allowed(stored.profile, model.terms)
        except ValueError as error:
            left_out.append(f"{draft.settings.where('memory.max_mb')}: found {error}")
            continue
        batch = draft.asked_batch or stored.max_batch
        known[draft.name] = _ProfiledModel(with_assumed_slo(model, allowed), allowed, batch)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        left_out.append(
            f"{names}: no profile on this device; `interlace profile {models}` measures it, or "
            "says why it cannot"
        )
    if not known:
        raise UserError(f"no model of {models} can be planned for: {'; '.join(left_out)}")
    return known
