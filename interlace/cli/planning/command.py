"""The capacity question from the command line: asked, answered, shown, drawn and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import typer

from interlace.cli.planning.answer import Answer, answer
from interlace.cli.planning.draw import check_suffix, draw
from interlace.cli.planning.explain import explain
from interlace.cli.planning.planfile import save
from interlace.cli.planning.scenario import Scenario, read_scenario
from interlace.cli.planning.sweep import draw_sweep, figures, show_sweep, solved, variants
from interlace.cli.planning.table import sentences, show
from interlace.cli.screen import console, table
from interlace.policy.base import System
from interlace.policy.catalog import CATALOG


@dataclass(frozen=True, slots=True)
class Wishes:
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
    rates: Mapping[str, float] | None = None
    slos: Mapping[str, float] | None = None
    price: float | None = None


def plan_scenario(path: Path, system: System, overrides: Overrides, wishes: Wishes) -> None:
    """Answer the scenario in ``path`` as wished.

    Raises:
        CommandError: the scenario, an option or a profile is not what it should be.
        OSError: a file cannot be written.
    """
    for picture in wishes.draw:
        check_suffix(picture)

    def read(gpu: str | None) -> Scenario:
        asked = read_scenario(path, gpu).asked(overrides.rates or {}, overrides.slos or {})
        price = asked.price_per_hour if overrides.price is None else overrides.price
        return replace(asked, price_per_hour=price)

    scenario = read(overrides.gpu)
    if wishes.what_if:
        _what_if(scenario, system, wishes, read)
    elif wishes.compare:
        _compare(scenario, wishes)
    else:
        _one(scenario, system, wishes)


def _one(scenario: Scenario, system: System, wishes: Wishes) -> None:
    found = answer(scenario, system)
    words = [line for model in wishes.explain for line in explain(found, model)]
    if wishes.as_json:
        typer.echo(_json(report(found)))
    else:
        show(console(), found)
        for line in words:
            typer.echo(line)
    for picture in wishes.draw:
        draw(found, picture)
        typer.echo(f"drawn: {picture}", err=True)
    if wishes.save is not None:
        save(wishes.save, system.name, scenario.gpu, found.plan)
        typer.echo(f"kept: {wishes.save}", err=True)


def _what_if(scenario: Scenario, system: System, wishes: Wishes, read: object) -> None:
    assert callable(read)
    asked = variants(wishes.what_if, scenario, read)
    found = list(solved(asked, system, _say))
    if wishes.as_json:
        typer.echo(_json({variant.name: report(one) for variant, one in found}))
    else:
        show_sweep(console(), found)
    for picture in wishes.draw:
        draw_sweep(found, picture)
        typer.echo(f"drawn: {picture}", err=True)


def _compare(scenario: Scenario, wishes: Wishes) -> None:
    """Every row of the catalog on the same scenario, fewest GPUs first."""
    found: list[Answer] = []
    for number, system in enumerate(CATALOG.values(), 1):
        _say(f"{number} of {len(CATALOG)}: {system.name}")
        found.append(answer(scenario, system, found[0].bound if found else None))
    found.sort(key=lambda one: (not one.served, one.gpus, one.system))
    if wishes.as_json:
        typer.echo(_json({one.system: report(one) for one in found}))
        return
    made = table(
        ("system", "source"),
        ("GPUs", "bound", "gap", "an hour", "unserved/s", "plan s", "in SLO %"),
    )
    for one in found:
        least = min((e.attainment for e in one.expected.values()), default=0.0)
        source = CATALOG[one.system].source
        made.add_row(one.system, source, *figures(one), f"{100 * least:.1f}")
    console().print(made)
    typer.echo("in SLO %: expected of the model that fares worst, under Poisson arrivals or its cv")


def report(found: Answer) -> dict[str, object]:
    """The answer as plain values."""
    bound = found.bound
    return {
        "system": found.system,
        "gpu": found.scenario.gpu.kind,
        "gpus": found.gpus,
        "lower_bound": {
            "gpus": bound.gpus,
            "area": bound.area.accelerators,
            "configuration": bound.configuration.accelerators,
            "memory": bound.memory.accelerators,
        },
        "gap": found.gap if found.served else None,
        "cost_per_hour": found.cost_per_hour,
        "planning_s": found.planning_s,
        "partitions": found.plan.partitions,
        "models": {
            name: {
                "p99_ms": _finite(one.p99_ms),
                "attainment": one.attainment,
                "price_gpus_per_rps": bound.best.price.get(name),
            }
            for name, one in found.expected.items()
        },
        "unserved_rps": {k: _finite(v) for k, v in found.plan.unserved_rps.items()},
        "reasons": found.plan.reasons,
        "said": sentences(found),
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _say(text: str) -> None:
    typer.echo(text, err=True)
