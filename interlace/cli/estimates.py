"""Estimated profiles and capacity plans on the screen: what they rest on is always said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import typer
from rich.console import Console

from interlace.assembly.estimation import (
    Estimates,
    EstimateTask,
    estimate,
    save,
    scenarios,
    worth_measuring,
)
from interlace.cli.options import NOT_KEPT
from interlace.cli.plan_scenario import (
    PlanOutputs,
    draw_and_save,
    refuse_for_kinds,
    running_plan,
    vary,
)
from interlace.cli.plan_tables import show
from interlace.cli.screen import FoldingTable, console
from interlace.core.rendering import json_text
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.explanation import explain
from interlace.planning.scenario import Scenario
from interlace.policy.base import System
from interlace.profiling.profile_file import point_rows


def profile_estimated(task: EstimateTask, as_json: bool) -> None:
    """Estimate profiles, show and keep them.

    Raises:
        UserError: nothing can be estimated.
    """
    found = estimate(task)
    save(found, task.folder)
    if as_json:
        typer.echo(json_text(_entries(found)))
        return
    out = console()
    _show(out, found)
    _say(out, found)
    out.print(f"kept in {task.folder / 'estimated'}; servers use measured profiles alone")


def _entries(found: Estimates) -> list[dict[str, object]]:
    return [
        {
            "model": one.name,
            "device": kind,
            "estimated": profile.estimated,
            "interval": profile.interval,
            "unread": one.work.unread,
            "gflops": one.work.flops / 1e9,
            "weights_bytes": profile.weights_bytes,
            "activation_bytes": profile.activation_bytes,
            "points": point_rows(profile),
        }
        for kind, profiles in found.profiles.items()
        for one in found.models
        for profile in [profiles[one.name]]
    ]


def _show(out: Console, found: Estimates) -> None:
    figures = ("GFLOP a row", "batch", "ms", "8 of 10 within", "rows/s", "memory MB")
    made = FoldingTable(("model", "GPU", ""), figures, "latency on the whole GPU")
    for kind, profiles in found.profiles.items():
        for one in found.models:
            profile = profiles[one.name]
            low, high = profile.interval
            batches = sorted(batch for batch, share in profile.points if share == 100)
            for batch in dict.fromkeys((batches[0], batches[-1])):
                ms = profile.points[batch, 100].median_ms
                made.add_row(
                    one.name,
                    kind,
                    "estimated" if profile.estimated else "measured",
                    f"{one.work.flops / 1e9:.2f}",
                    str(batch),
                    f"{ms:.2f}",
                    f"{low * ms:.2f} to {high * ms:.2f}" if profile.estimated else "-",
                    f"{1000 * batch / ms:.0f}",
                    f"{(profile.weights_bytes + profile.activation_bytes) / 1e6:.0f}",
                )
    out.print(made)


def _say(out: Console, found: Estimates) -> None:
    for line in [*found.notes, *(f"left out: {one}" for one in found.failures)]:
        out.print(line, soft_wrap=True)


_CASES: Final = "8 of 10 cases"


@dataclass(frozen=True, slots=True)
class EstimatedPlan:
    """The fewest GPUs of one kind, for the estimate and for its pessimistic end."""

    kind: str
    central: CapacityPlan
    pessimistic: CapacityPlan
    measure: str  #: the model whose measurement would narrow it most; empty if all have a point

    @property
    def sentence(self) -> str:
        """The two counts in words."""
        estimated = any(one.estimated for one in self.central.scenario.profiles.values())
        if not estimated:
            return f"{self.kind}: {_gpus(self.central)}, measured"
        return (
            f"{self.kind}: {_gpus(self.central)} if the estimate holds, "
            f"{_gpus(self.pessimistic)} at its slow end ({_CASES})"
        )


def _gpus(one: CapacityPlan) -> str:
    if not one.kept:
        why = next(iter(one.plan.reasons.values()), "a promise breaks when the plan is tried")
        return f"no number of GPUs up to {one.scenario.limit} ({why})"
    return f"{one.gpus} {one.scenario.gpu.kind}"


def plan_estimated(
    task: EstimateTask,
    rates: Mapping[str, float],
    slos: Mapping[str, float],
    prices: Mapping[str, float],
    system: System,
    outputs: PlanOutputs,
) -> None:
    """Answer the capacity question of a folder of models for each kind by itself.

    Raises:
        UserError: nothing can be estimated, or a rate is missing.
        InputError: an option is not what it should be.
    """
    if len(task.kinds) > 1:
        refuse_for_kinds(outputs)
    found = estimate(task)

    def read(kind: str | None) -> Scenario:
        if kind not in (None, *task.kinds):
            raise InputError(
                f"--what-if gpu={kind}: estimates are of {task.kinds[0]}; use --gpu {kind}"
            )
        return scenarios(found, task.kinds[0], rates, slos, prices.get(task.kinds[0]))[0]

    if vary(read(None), system, outputs, read):
        return
    plans = []
    for kind in task.kinds:
        asked, slow = scenarios(found, kind, rates, slos, prices.get(kind))
        plans.append(
            EstimatedPlan(
                kind,
                plan(asked, system=system, current=running_plan(asked, system, outputs)),
                plan(slow, system=system),
                worth_measuring(found, kind, rates),
            )
        )
    central = plans[0].central
    said = [line for model in outputs.explain for line in explain(central, model, system)]
    if outputs.as_json:
        typer.echo(json_text(_plain(found, plans) | ({"explained": said} if said else {})))
    else:
        _show_plans(console(), found, plans)
        for line in said:
            typer.echo(line)
    draw_and_save(central, outputs)
    if not any(one.central.kept for one in plans):
        raise typer.Exit(NOT_KEPT)


def _plain(found: Estimates, plans: list[EstimatedPlan]) -> dict[str, object]:
    return {
        "profiles": _entries(found),
        "notes": [*found.notes, *found.failures],
        "answer": _answer(plans, found),
        "kinds": {
            one.kind: {
                "central": one.central.to_dict(),
                "pessimistic": one.pessimistic.to_dict(),
                "measure": one.measure,
            }
            for one in plans
        },
    }


def _show_plans(out: Console, found: Estimates, plans: list[EstimatedPlan]) -> None:
    _show(out, found)
    if len(plans) == 1:
        show(out, plans[0].central)
    _say(out, found)
    for one in plans:
        out.print(one.sentence, soft_wrap=True)
    asked = next((one for one in plans if one.measure), None)
    if asked is not None:
        out.print(
            f"one measured batch of {asked.measure} on {asked.kind} would narrow this most: "
            "--measured FILE.csv, or interlace profile on such a GPU",
            soft_wrap=True,
        )
    out.print(_answer(plans, found), soft_wrap=True)


def _answer(plans: list[EstimatedPlan], found: Estimates) -> str:
    """The answer in one line."""
    counts = " or ".join(_gpus(one.central) for one in plans if one.central.kept)
    if not counts:
        return "none of these GPUs keeps every promise"
    if not any(one.estimated for kind in found.profiles.values() for one in kind.values()):
        return f"{counts}, measured"
    slow = " or ".join(_gpus(one.pessimistic) for one in plans if one.pessimistic.kept)
    kinds = [
        one.kind for one in plans if not all(model.checked(one.kind) for model in found.models)
    ]
    unseen = " or ".join(kinds)
    doubt = f"; no measurements on {unseen} were used to test the method" if unseen else ""
    slow = slow or "no number of these"
    return f"{counts} if the estimates hold, {slow} at their slow end ({_CASES}){doubt}"
