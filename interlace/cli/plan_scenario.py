"""`interlace plan SCENARIO.toml`: the question asked, answered, shown, drawn and kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import typer

from interlace.cli.options import NOT_KEPT, check_output
from interlace.cli.plan_tables import show, show_kinds, show_memory, show_systems, show_what_ifs
from interlace.cli.screen import console
from interlace.core.figure_file import check_figure_path
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.plan import Plan
from interlace.core.rendering import json_text
from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.drawing import draw_plan, draw_what_ifs
from interlace.planning.explanation import explain
from interlace.planning.kinds import plan_kinds
from interlace.planning.memory_plan import LayeredModels, layered_models, tried_memory
from interlace.planning.plan_file import load_fleet_plan
from interlace.planning.scenario import Scenario, read_scenario, with_weights_memory
from interlace.planning.what_if import ReadScenario, advice, compare_systems, what_ifs
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
    current: Path | None = None  #: a plan that stands
    page: int | None = None  #: the port to show it at
    draft: bool = False  #: print the plan that is tried first before its trial

    @property
    def of_one_plan(self) -> dict[str, object]:
        """Options that one plan alone can fulfil, truthy where given."""
        page = self.page is not None  # 0 is a port
        names = {"--explain": self.explain, "--save": self.save, "--current": self.current}
        return names | {"--page": page}


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file."""

    gpu: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    slos: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None


def plan_scenario(path: Path, system: System, overrides: Overrides, outputs: PlanOutputs) -> None:
    """Answer the scenario in ``path``, and show, draw and keep the answer.

    Raises:
        InputError: the scenario, an option or a profile is not what it should be.
        OSError: a file cannot be written.
    """
    check_outputs(outputs)
    gc.freeze()  # what was imported stays: no collection need walk it

    def read(gpu: str | None) -> Scenario:
        found = read_scenario(path, gpu, overrides.prices).asked(overrides.rates, overrides.slos)
        if overrides.memory_bytes is None:
            return found
        return replace(found, gpu=with_weights_memory(found.gpu, overrides.memory_bytes))

    kinds = list(dict.fromkeys((overrides.gpu or "").split(",")))
    scenario = read(kinds[0] or None)
    for kind in overrides.prices:
        if kind not in GPU_KINDS and kind != scenario.gpu.kind:
            hint = did_you_mean(kind, GPU_KINDS)
            raise InputError(f"--price {kind}: no such kind of GPU{hint}")
    if len(kinds) > 1:
        refuse_for_kinds(outputs)
        _kinds([scenario, *map(read, kinds[1:])], system, outputs)
    else:
        show_again = partial(_show_page, _again(path, system, overrides), outputs.page)
        answer(scenario, system, outputs, read, show_again)


def _again(path: Path, system: System, overrides: Overrides) -> list[str]:
    """What follows `interlace plan` to ask the same with other rates and SLOs."""
    words = [str(path.absolute()), "--system", system.name]
    for kind, price in overrides.prices.items():
        words += ["--price", f"{kind}={price!r}"]
    if overrides.memory_bytes is not None:
        words += ["--memory", str(overrides.memory_bytes)]
    return words if overrides.gpu is None else [*words, "--gpu", overrides.gpu]


def _show_page(words: Sequence[str], port: int | None, found: CapacityPlan) -> None:
    if port is not None:
        from interlace.assembly.page import show_plan  # plans are made sooner without

        show_plan(found, words, port, lambda url: _say(f"open {url}; Ctrl-C ends"))


def answer(
    scenario: Scenario,
    system: System,
    outputs: PlanOutputs,
    read: ReadScenario,
    then: Callable[[CapacityPlan], None] = lambda found: None,
) -> None:
    """Plan one scenario, its variants or by all systems; show, draw and save the answer.

    ``then`` gets the plan, if there is one alone.
    """
    if not vary(scenario, system, outputs, read):
        _one(scenario, system, outputs, then)


def vary(scenario: Scenario, system: System, outputs: PlanOutputs, read: ReadScenario) -> bool:
    """Answer ``--what-if`` or ``--compare``; False if neither is asked for."""
    if outputs.what_if:
        _what_if(scenario, system, outputs, read)
    elif outputs.compare:
        _compare(scenario, outputs)
    return bool(outputs.what_if) or outputs.compare


def check_outputs(outputs: PlanOutputs) -> None:
    """Refuse what cannot be drawn, and options that only one plan can fulfil.

    Raises:
        InputError: an option does not go with another, or a file cannot be written.
    """
    for picture in outputs.draw:
        check_figure_path(picture)
        check_output("--draw", picture)
    check_output("--save", outputs.save)
    one_plan = outputs.of_one_plan | {"--draft": outputs.draft}
    if outputs.draft and not outputs.as_json:
        raise InputError("--draft goes with --json")
    if outputs.what_if:
        _refuse("--what-if", {**one_plan, "--compare": outputs.compare})
    if outputs.compare:
        _refuse("--compare", {**one_plan, "--draw": outputs.draw})


def _layered(scenario: Scenario) -> LayeredModels | None:
    """The scenario's models, if it has memory for swapped weights.

    Raises:
        UserError: their layers are not known, or one does not fit.
    """
    if not scenario.gpu.weights_bytes:
        return None
    return layered_models(scenario.demand, scenario.busy_profiles, scenario.gpu)


def _refuse(many: str, options: Mapping[str, object]) -> None:
    for option, given in options.items():
        if given:
            raise InputError(f"{many} makes many plans: {option} does not go with it")


def _draft(found: CapacityPlan) -> None:
    """Print a plan before its trial, which shows what it keeps."""
    untold: dict[str, object] = {"kept": None, "said": []}
    typer.echo(msgspec.json.encode({"trying": found.to_dict() | untold}))


def _one(
    scenario: Scenario,
    system: System,
    outputs: PlanOutputs,
    then: Callable[[CapacityPlan], None],
) -> None:
    layered = _layered(scenario)  # before the plan: it says at once what it cannot answer
    current = running_plan(scenario, system, outputs)
    drafts = [_draft] if outputs.draft else []
    found = plan(
        scenario,
        system=system,
        current=current,
        on_trial=lambda tried: drafts.pop()(tried) if drafts else None,
    )
    said = [line for model in outputs.explain for line in explain(found, model, system)]
    helps = "" if scenario.as_given else advice(found, system)
    memory = None
    if layered is not None and found.gpus:
        memory = tried_memory(layered, found.fleet, found.plan, system)
    if outputs.as_json:
        more: dict[str, object] = {"explained": said} if said else {}
        more |= {} if memory is None else {"memory": memory}
        typer.echo(json_text(found.to_dict() | more | ({"advice": helps} if helps else {})))
    else:
        show(console(), found)
        if memory is not None:
            show_memory(console(), memory)
        for line in [*([helps] if helps else []), *said]:
            typer.echo(line)
    draw_and_save(found, outputs)
    then(found)
    if not found.kept or (memory is not None and memory.broken):
        raise typer.Exit(NOT_KEPT)


def running_plan(scenario: Scenario, system: System, outputs: PlanOutputs) -> Plan | None:
    """The plan of ``--current``."""
    if outputs.current is None:
        return None
    return Plan(load_fleet_plan(outputs.current, scenario.gpu, system.name)[1])


def draw_and_save(found: CapacityPlan, outputs: PlanOutputs) -> None:
    """Write the files of ``--draw`` and ``--save``."""
    for picture in outputs.draw:
        draw_plan(found, picture)
        _say(f"drawn: {picture}")
    if outputs.save is not None:
        found.save(outputs.save)
        _say(f"kept: {outputs.save}")


def refuse_for_kinds(outputs: PlanOutputs) -> None:
    """Refuse options that only one kind of GPU can fulfil.

    Raises:
        InputError: one of them is given.
    """
    more = {"--draw": outputs.draw, "--what-if": outputs.what_if, "--compare": outputs.compare}
    _refuse("--gpu with several kinds", outputs.of_one_plan | more)


def _kinds(scenarios: Sequence[Scenario], system: System, outputs: PlanOutputs) -> None:
    found = plan_kinds(scenarios, system)
    if outputs.as_json:
        typer.echo(json_text(found.to_dict()))
    else:
        show_kinds(console(), found)
    if not found.kept:
        raise typer.Exit(NOT_KEPT)


def _what_if(scenario: Scenario, system: System, outputs: PlanOutputs, read: ReadScenario) -> None:
    asked = what_ifs(outputs.what_if, scenario, read)
    found: dict[str, CapacityPlan] = {}
    for number, one in enumerate(asked, 1):
        _say(f"{number} of {len(asked)}: {one.name}")
        found[one.name] = plan(one.scenario, system=system)
    if outputs.as_json:
        typer.echo(json_text({name: one.to_dict() for name, one in found.items()}))
    else:
        show_what_ifs(console(), found)
    for picture in outputs.draw:
        draw_what_ifs(found, picture)
        _say(f"drawn: {picture}")


def _compare(scenario: Scenario, outputs: PlanOutputs) -> None:
    found = compare_systems(scenario, _say)
    if outputs.as_json:
        typer.echo(json_text({one.system: one.to_dict() for one in found}))
    else:
        show_systems(console(), found)


def _say(text: str) -> None:
    typer.echo(text, err=True)
