"""What if: the same question with other rates, SLOs, hardware or one model more, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from interlace.cli.screen import table
from interlace.core.plan import Demand
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import CapacityPlan, answer
from interlace.planning.drawing import check_suffix, write
from interlace.planning.fields import near
from interlace.planning.scenario import Scenario
from interlace.policy.base import System

_MOST_SAID: Final = 8
_FORMS: Final = "rates=0.5,1,2 or slos=1,2 or gpu=h100,a100 or model=NAME:RPS:MS"

#: The scenario again, for another kind of GPU.
Reader = Callable[[str | None], Scenario]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A scenario that differs from the one asked for in what ``name`` says."""

    name: str
    scenario: Scenario


def variants(asked: Sequence[str], base: Scenario, other_gpu: Reader) -> list[WhatIf]:
    """The base scenario, then one for each value of every ``KIND=VALUES`` in ``asked``.

    ``other_gpu`` reads the scenario again for another kind of GPU.

    Raises:
        InputError: not of that form, or a model that has no profile.
    """
    found = [WhatIf("as asked", base)]
    for text in asked:
        kind, equals, values = text.partition("=")
        if not equals or not values:
            raise InputError(f"--what-if {text}: expected {_FORMS}")
        found += [_variant(text, kind, value, base, other_gpu) for value in values.split(",")]
    return found


def _variant(text: str, kind: str, value: str, base: Scenario, other_gpu: Reader) -> WhatIf:
    match kind:
        case "rates":
            factor = _factor(text, value)
            demand = tuple(replace(d, rows_per_s=d.rows_per_s * factor) for d in base.demand)
            return WhatIf(f"rates x {value}", replace(base, demand=demand))
        case "slos":
            factor = _factor(text, value)
            demand = tuple(replace(d, slo_ms=d.slo_ms * factor) for d in base.demand)
            return WhatIf(f"SLOs x {value}", replace(base, demand=demand))
        case "gpu":
            return WhatIf(f"on {value}", other_gpu(value))
        case "model":
            return WhatIf(f"{value} more", _with_model(text, value, base))
        case _:
            raise InputError(f"--what-if {text}: expected {_FORMS}")


def _factor(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = -1.0
    if not 0 < factor < 1e6:
        raise InputError(f"--what-if {text}: '{value}' is not a number above 0")
    return factor


def _with_model(text: str, value: str, base: Scenario) -> Scenario:
    """One model more; of one that is there already, a second tenant with an SLO of its own."""
    name, _, figures = value.partition(":")
    rate, _, slo = figures.partition(":")
    if name not in base.profiles:
        raise InputError(
            f"--what-if {text}: there is no profile of '{name}'{near(name, base.profiles)}"
        )
    taken = {one.model for one in base.demand}
    tenant = name
    while tenant in taken:
        tenant += "+"
    added = Demand(tenant, _factor(text, rate), _factor(text, slo))
    profiles = {**base.profiles, tenant: base.profiles[name]}
    return replace(base, demand=(*base.demand, added), profiles=profiles)


def solved(
    found: Sequence[WhatIf], system: System, say: Callable[[str], None]
) -> Iterator[tuple[WhatIf, CapacityPlan]]:
    """The answer to each, as it comes; progress is told to ``say``."""
    for number, variant in enumerate(found, 1):
        say(f"{number} of {len(found)}: {variant.name}")
        yield variant, answer(variant.scenario, system)


def show_sweep(out: Console, found: Sequence[tuple[WhatIf, CapacityPlan]]) -> None:
    """One line for each variant, and what is not served in them and why."""
    made = table(("what if", "GPU"), ("GPUs", "bound", "gap", "an hour", "unserved/s", "plan s"))
    for variant, one in found:
        made.add_row(variant.name, one.scenario.gpu.kind, *figures(one))
    out.print(made)
    said = [f"{variant.name}: {line}" for variant, one in found for line in _unserved(one)]
    for line in said[:_MOST_SAID]:
        out.print(line, soft_wrap=True)
    if said[_MOST_SAID:]:
        out.print(f"and {len(said) - _MOST_SAID} more; --json has all")


def _unserved(one: CapacityPlan) -> list[str]:
    lost = one.plan.unserved_rows_per_s.items()
    return [
        *one.scenario.notes,
        *(f"{rps:.4g}/s of {name} not served: {one.plan.reasons.get(name)}" for name, rps in lost),
    ]


def figures(one: CapacityPlan) -> tuple[str, ...]:
    """GPUs, bound, gap, cost, unserved rate and planning time, as text."""
    lost = sum(one.plan.unserved_rows_per_s.values())
    return (
        str(one.gpus),
        str(one.bound.gpus),
        f"{one.gap:.2f}x" if one.served else "-",
        "-" if one.cost_per_hour is None else f"{one.cost_per_hour:.2f}",
        f"{lost:.4g}" if lost else "",
        f"{one.planning_s:.2f}",
    )


def draw_sweep(found: Sequence[tuple[WhatIf, CapacityPlan]], path: Path) -> None:
    """GPUs of each variant beside their lower bound, and what they cost.

    Raises:
        InputError: the suffix is neither .svg nor .png.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    check_suffix(path)
    names = [variant.name for variant, _ in found]
    places = range(len(found))
    figure = Figure(figsize=(2 + 0.9 * len(found), 3.6), layout="constrained")
    axis = figure.subplots()
    gpus = [one.gpus for _, one in found]
    axis.bar(places, gpus, color="#8fb8de", label="GPUs in the plan")
    axis.plot(
        places, [one.bound.gpus for _, one in found], "k_", markersize=22, label="lower bound"
    )
    for place, (_, one) in zip(places, found, strict=True):
        cost = "" if one.cost_per_hour is None else f"\n{one.cost_per_hour:.2f}/h"
        short = "" if one.served else "\nnot all served"
        axis.text(place, one.gpus, f"{one.gpus}{cost}{short}", ha="center", va="bottom", fontsize=7)
    axis.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    axis.set_ylim(0, max([*gpus, 1]) * 1.3)
    axis.set_ylabel("GPUs")
    axis.set_title(f"GPUs needed by {found[0][1].system}", fontsize=10, loc="right")
    axis.legend(fontsize=7, loc="upper left")
    write(figure, path)
