"""The capacity question from the command line: asked, answered, shown, drawn and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from interlace.cli.planning.compare import compared, show_compared
from interlace.cli.planning.explain import explain
from interlace.cli.planning.report import as_json, report
from interlace.cli.planning.sweep import Reader, draw_sweep, show_sweep, solved, variants
from interlace.cli.planning.table import show
from interlace.cli.screen import console
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import answer
from interlace.planning.drawing import check_suffix, draw
from interlace.planning.fields import near
from interlace.planning.plan_file import save
from interlace.planning.scenario import Scenario, read_scenario
from interlace.policy.base import System


@dataclass(frozen=True, slots=True)
class PlanOutputs:
    """What is to be done with the answer."""

    explain: Sequence[str] = ()
    draw: Sequence[Path] = ()
    what_if: Sequence[str] = ()
    compare: bool = False
    as_json: bool = False
    save: Path | None = None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file."""

    gpu: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    slos: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


def plan_scenario(path: Path, system: System, overrides: Overrides, wishes: PlanOutputs) -> None:
    """Answer the scenario in ``path`` as wished.

    Raises:
        InputError: the scenario, an option or a profile is not what it should be.
        OSError: a file cannot be written.
    """
    _check(wishes)

    def read(gpu: str | None) -> Scenario:
        asked = read_scenario(path, gpu, overrides.prices)
        return asked.asked(overrides.rates, overrides.slos)

    scenario = read(overrides.gpu)
    for kind in overrides.prices:
        if kind not in GPU_KINDS and kind != scenario.gpu.kind:
            raise InputError(f"--price {kind}: no such kind of GPU{near(kind, GPU_KINDS)}")
    if wishes.what_if:
        _what_if(scenario, system, wishes, read)
    elif wishes.compare:
        _compare(scenario, wishes)
    else:
        _one(scenario, system, wishes)


def _check(wishes: PlanOutputs) -> None:
    """Refuse what cannot be drawn, and wishes that only one plan can fulfil."""
    for picture in wishes.draw:
        check_suffix(picture)
    one_plan = {"--explain": bool(wishes.explain), "--save": wishes.save is not None}
    if wishes.what_if:
        _refuse("--what-if", {**one_plan, "--compare": wishes.compare})
    if wishes.compare:
        _refuse("--compare", {**one_plan, "--draw": bool(wishes.draw)})


def _refuse(many: str, options: Mapping[str, bool]) -> None:
    for option, wished in options.items():
        if wished:
            raise InputError(f"{many} makes many plans: {option} does not go with it")


def _one(scenario: Scenario, system: System, wishes: PlanOutputs) -> None:
    found = answer(scenario, system)
    words = [line for model in wishes.explain for line in explain(found, model, system)]
    if wishes.as_json:
        typer.echo(as_json({**report(found), "explained": words} if words else report(found)))
    else:
        show(console(), found)
        for line in words:
            typer.echo(line)
    for picture in wishes.draw:
        draw(found, picture)
        _say(f"drawn: {picture}")
    if wishes.save is not None:
        save(wishes.save, system.name, scenario.gpu, found.plan)
        _say(f"kept: {wishes.save}")


def _what_if(scenario: Scenario, system: System, wishes: PlanOutputs, read: Reader) -> None:
    asked = variants(wishes.what_if, scenario, read)
    found = list(solved(asked, system, _say))
    if wishes.as_json:
        typer.echo(as_json({variant.name: report(one) for variant, one in found}))
    else:
        show_sweep(console(), found)
    for picture in wishes.draw:
        draw_sweep(found, picture)
        _say(f"drawn: {picture}")


def _compare(scenario: Scenario, wishes: PlanOutputs) -> None:
    found = compared(scenario, _say)
    if wishes.as_json:
        typer.echo(as_json({one.system: report(one) for one in found}))
    else:
        show_compared(console(), found)


def _say(text: str) -> None:
    typer.echo(text, err=True)
