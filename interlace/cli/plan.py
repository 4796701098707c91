"""`interlace plan`: fewest accelerators for a scenario, or how models would share this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from interlace.assembly.accelerators import choose_accelerators
from interlace.assembly.machine import cpu_settings, default_profiles
from interlace.assembly.model_folders import drafts, find
from interlace.cli.options import (
    Cores,
    Device,
    Gpus,
    Json,
    Profiles,
    SystemName,
    numbers,
    system_named,
)
from interlace.cli.planning.command import Overrides, PlanOutputs, plan_scenario
from interlace.cli.plantable import PlannedSlot, lines, show
from interlace.cli.screen import console
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError, UserError
from interlace.planning.plan_file import save as save_plan
from interlace.policy.base import System
from interlace.profiling.store import ProfileStore

Target = Annotated[
    Path, typer.Argument(metavar="SCENARIO.toml|MODELS_DIR", help="What is to be planned for.")
]

_Rate = Annotated[
    list[str] | None, typer.Option(metavar="NAME=RPS", help="Expected requests per second.")
]
_Slo = Annotated[
    list[str] | None, typer.Option(metavar="NAME=MS", help="Another SLO than the file's.")
]
_Kind = Annotated[str | None, typer.Option(help=f"Scenario: plan for {', '.join(GPU_KINDS)}.")]
_Price = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=USD", help="Scenario: cost of one such GPU an hour."),
]
_Explain = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Scenario: why that model got this.")
]
_Draw = Annotated[
    list[Path] | None, typer.Option(help="Scenario: a picture, .svg or .png; may be repeated.")
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=VALUES",
        help="Scenario: rates=0.5,2 or slos=1,2 or gpu=h100,t4 or model=NAME:RPS:MS.",
    ),
]
_Compare = Annotated[bool, typer.Option("--compare", help="Scenario: every system side by side.")]
_Save = Annotated[Path | None, typer.Option(help="Keep the plan in a file, for serve --plan.")]


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model that was profiled, and what is asked of it."""

    name: str
    demand: Demand
    profile: Profile


def plan(
    target: Target,
    rate: _Rate = None,
    slo: _Slo = None,
    system: SystemName = "interlace",
    gpu: _Kind = None,
    price: _Price = None,
    explain: _Explain = None,
    draw: _Draw = None,
    what_if: _WhatIf = None,
    compare: _Compare = False,
    save: _Save = None,
    device: Device = "auto",
    gpus: Gpus = None,
    cores: Cores = None,
    profiles: Profiles = None,
    as_json: Json = False,
) -> None:
    """The fewest GPUs for models, rates and SLOs, or how models would share this machine.

    Given a scenario (a TOML file of models, rates, SLOs and a kind of GPU) it says how few GPUs
    do, how each is cut, what each model may expect, and below how many no scheduler can go. No
    GPU is needed for that.

    Given a folder of models it shows how they would share this machine's GPU or cores, from stored
    profiles: nothing is loaded or run. A model without a rate, here or in its interlace.toml, is
    given a small part of the machine, and the whole machine is shared out in proportion.

    \b
    Examples:
      interlace plan examples/planning/nine.toml
      interlace plan examples/planning/nine.toml --compare
      interlace plan examples/planning/nine.toml --what-if rates=0.5,1,2,4 --draw sweep.svg
      interlace plan models/ --rate cnn_small=100 --rate embedder=20 --slo embedder=150
      interlace plan models/ --rate cnn_small=500 --system gpulet --json
    """
    row = system_named(system)
    rates, slos = numbers("--rate", rate or []), numbers("--slo", slo or [])
    prices = numbers("--price", price or [])
    wishes = PlanOutputs(
        explain or (), draw or (), what_if or (), compare=compare, as_json=as_json, save=save
    )
    if target.suffix == ".toml":
        plan_scenario(target, row, Overrides(gpu, rates, slos, prices), wishes)
        return
    if target.is_file():
        raise InputError(f"{target}: expected a scenario (.toml) or a folder of models")
    _only_for_scenarios(gpu, prices, wishes)
    here = choose_accelerators(device, cpu_settings(cores), gpus).gpus[0]
    _plan_machine(target, row, here, profiles, rates, slos, wishes)


def _only_for_scenarios(gpu: str | None, prices: Mapping[str, float], wishes: PlanOutputs) -> None:
    asked = {
        "--gpu": gpu,
        "--price": prices,
        "--explain": wishes.explain,
        "--draw": wishes.draw,
        "--what-if": wishes.what_if,
        "--compare": wishes.compare,
    }
    for option, value in asked.items():
        if value:
            raise InputError(f"{option} is for scenarios (a .toml file), not for a model folder")


def _plan_machine(
    root: Path,
    row: System,
    gpu: Gpu,
    profiles: Path | None,
    rates: Mapping[str, float],
    slos: Mapping[str, float],
    wishes: PlanOutputs,
) -> None:
    store = ProfileStore(profiles or default_profiles(), console(stderr=True).print)
    known = _known(root, store, gpu)
    for name in (*rates, *slos):
        if name not in {one.name for one in known}:
            raise UserError(f"{root} has no model '{name}'")
    demand = [_asked(one, rates, slos) for one in known]
    found = {one.demand.model: one.profile for one in known}
    names = {one.demand.model: one.name for one in known}
    made = row.planner(demand, Fleet((gpu,)), found, Plan())
    rows = lines(made, demand, found, names)
    if wishes.as_json:
        typer.echo(_as_json(made, rows, names))
    else:
        show(console(), made, rows, names)
    if wishes.save is not None:
        save_plan(wishes.save, row.name, gpu, _public(made, names))
        typer.echo(f"kept: {wishes.save}", err=True)


def _public(made: Plan, names: Mapping[str, str]) -> Plan:
    """The plan with the names that people use; versions of a model have one place together."""

    def renamed(part: Partition) -> Partition:
        slots = {names[slot.model]: replace(slot, model=names[slot.model]) for slot in part.slots}
        return replace(part, slots=tuple(slots.values()))

    return replace(made, partitions=tuple(map(renamed, made.partitions)))


def _known(root: Path, store: ProfileStore, gpu: Gpu) -> list[ProfiledModel]:
    known, missing = [], []
    for draft in drafts(root, find(root, ()), console(stderr=True).print):
        model = draft.provisional()
        stored = store.recall(model, gpu)
        if stored is None:
            missing.append(draft.name)
            continue
        batch = draft.asked_batch or stored.max_batch
        demand = Demand(
            model.key, as_rows_per_s(model.terms.rate_rps or 0.0), model.terms.slo_ms, batch
        )
        known.append(ProfiledModel(draft.name, demand, stored.profile))
    if missing:
        raise UserError(
            f"no profile of {', '.join(missing)} on this device; first: interlace profile {root}"
        )
    if not known:
        raise UserError(f"no model of {root} can be planned for")
    return known


def _asked(one: ProfiledModel, rates: Mapping[str, float], slos: Mapping[str, float]) -> Demand:
    return replace(
        one.demand,
        rows_per_s=as_rows_per_s(rates[one.name]) if one.name in rates else one.demand.rows_per_s,
        slo_ms=slos.get(one.name, one.demand.slo_ms),
    )


def _as_json(made: Plan, table: Sequence[PlannedSlot], names: Mapping[str, str]) -> str:
    report = {
        "slots": table,
        "headroom": made.headroom,
        "unserved_rows_per_s": {names[key]: rate for key, rate in made.unserved_rows_per_s.items()},
        "reasons": {names[key]: why for key, why in made.reasons.items()},
    }
    return msgspec.json.format(msgspec.json.encode(report)).decode()
