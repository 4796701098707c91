"""`interlace plan`: how models would share the cores, from stored profiles alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from interlace.cli.failure import CommandError
from interlace.cli.folders import drafts, find
from interlace.cli.machine import cpu, default_profiles, parse_cores
from interlace.cli.options import Cores, Json, Profiles, Root, SystemName, catalog_row, numbers
from interlace.cli.plantable import Line, lines, show
from interlace.cli.screen import console
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.measure.store import ProfileStore


@dataclass(frozen=True, slots=True)
class Known:
    """A model that was profiled, and what is asked of it."""

    name: str
    demand: Demand
    profile: Profile


def plan(
    models_dir: Root,
    rate: Annotated[
        list[str] | None, typer.Option(metavar="NAME=RPS", help="Expected requests per second.")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="NAME=MS", help="Another SLO than the folder's.")
    ] = None,
    system: SystemName = "interlace",
    cores: Cores = None,
    profiles: Profiles = None,
    as_json: Json = False,
) -> None:
    """Show how models would share the cores, and what would not fit.

    Works from stored profiles: nothing is loaded or run. A model without a rate, here or in its
    interlace.toml, is given a small part of the machine, and the whole machine is shared out in
    proportion.

    \b
    Examples:
      interlace plan models/
      interlace plan models/ --rate cnn_small=100 --rate embedder=20 --slo embedder=150
      interlace plan models/ --rate cnn_small=500 --system gpulet --json
    """
    planner, gpu = catalog_row(system).planner, cpu(parse_cores(cores))
    store = ProfileStore(profiles or default_profiles(), console(stderr=True).print)
    rates, slos = numbers("--rate", rate or []), numbers("--slo", slo or [])
    known = _known(models_dir, store, gpu)
    for name in (*rates, *slos):
        if name not in {one.name for one in known}:
            raise CommandError(f"{models_dir} has no model '{name}'")
    demand = [_asked(one, rates, slos) for one in known]
    found = {one.demand.model: one.profile for one in known}
    names = {one.demand.model: one.name for one in known}
    made = planner(demand, Fleet((gpu,)), found, Plan())
    table = lines(made, demand, found, names)
    if as_json:
        typer.echo(_as_json(made, table, names))
    else:
        show(console(), made, table, names)


def _known(root: Path, store: ProfileStore, gpu: Gpu) -> list[Known]:
    known, missing = [], []
    for draft in drafts(root, find(root, ()), console(stderr=True).print):
        model = draft.provisional()
        stored = store.recall(model, gpu)
        if stored is None:
            missing.append(draft.name)
            continue
        batch = draft.asked_batch or stored.max_batch
        demand = Demand(model.key, model.terms.rate_rps or 0.0, model.terms.slo_ms, batch)
        known.append(Known(draft.name, demand, stored.profile))
    if missing:
        raise CommandError(
            f"no profile of {', '.join(missing)} on this device; first: interlace profile {root}"
        )
    if not known:
        raise CommandError(f"no model of {root} can be planned for")
    return known


def _asked(one: Known, rates: Mapping[str, float], slos: Mapping[str, float]) -> Demand:
    return replace(
        one.demand,
        rate_rps=rates.get(one.name, one.demand.rate_rps),
        slo_ms=slos.get(one.name, one.demand.slo_ms),
    )


def _as_json(made: Plan, table: Sequence[Line], names: Mapping[str, str]) -> str:
    report = {
        "slots": table,
        "headroom": made.headroom,
        "unserved_rps": {names[key]: rate for key, rate in made.unserved_rps.items()},
        "reasons": {names[key]: why for key, why in made.reasons.items()},
    }
    return msgspec.json.format(msgspec.json.encode(report)).decode()
