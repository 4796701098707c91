"""`interlace plan`: fewest accelerators for a scenario, or how models would share this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from interlace.cli.options import (
    Cores,
    Device,
    Gpus,
    Json,
    Measured,
    Price,
    Profiles,
    SystemName,
    WeightsMemory,
    numbers,
    size_bytes,
)
from interlace.cli.plan_scenario import (
    Overrides,
    PlanOutputs,
    answer,
    check_outputs,
    plan_scenario,
)
from interlace.cli.screen import console, show_logs
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.model import MODEL_SUFFIXES
from interlace.core.user_errors import InputError
from interlace.planning.scenario import Scenario
from interlace.policy.catalog import system_of

Target = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.toml|MODELS_DIR|MODEL", help="A scenario, models or a model file."
    ),
]

_Rate = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=RPS", help="Expected requests per second of a model."),
]
_Slo = Annotated[
    list[str] | None, typer.Option(metavar="NAME=MS", help="SLO of a model, instead of the file's.")
]
_Kind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[,KIND]",
        help=f"Kinds of GPU: {', '.join(GPU_KINDS)}. Several: the cheapest mix for a "
        "scenario, one plan per kind for models.",
    ),
]
_Explain = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Explain a model's placement.")
]
_Draw = Annotated[
    list[Path] | None, typer.Option(help="Draw to this .svg or .png; may be repeated.")
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=VALUES",
        help="Vary rates=0.5,2, slos=1,2, gpu=h100,t4 or model=NAME:RPS:MS.",
    ),
]
_Compare = Annotated[bool, typer.Option("--compare", help="Compare all systems.")]
_Save = Annotated[Path | None, typer.Option(help="Save the plan to a file, for serve --plan.")]
_Current = Annotated[
    Path | None,
    typer.Option(metavar="PLAN", help="The running plan, to change little of it."),
]
_Page = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Show the plan in the browser, at this local port."),
]

_Draft = Annotated[
    bool,
    typer.Option("--draft", help="With --json: print the plan that is tried first, on a line."),
]


def plan(
    target: Target,
    rate: _Rate = None,
    slo: _Slo = None,
    system: SystemName = "interlace",
    gpu: _Kind = None,
    price: Price = None,
    explain: _Explain = None,
    draw: _Draw = None,
    what_if: _WhatIf = None,
    compare: _Compare = False,
    memory: WeightsMemory = None,
    save: _Save = None,
    current: _Current = None,
    device: Device = "auto", gpus: Gpus = None, cores: Cores = None,
    profiles: Profiles = None, measured: Measured = None,
    page: _Page = None, draft: _Draft = False, as_json: Json = False,
) -> None:  # fmt: skip
    """The fewest GPUs for models, rates and SLOs, or how models would share this machine.

    A scenario (.toml: models, rates, SLOs, a kind of GPU): the fewest GPUs, their partitions, the
    SLO attainment of the simulated plan, and a lower bound for any scheduler. No GPU is needed.

    A folder of models: the same for this machine's GPU or cores, from stored profiles, all of it
    used. Nothing is loaded. A model without a rate gets a small part of the machine.

    A folder or a model file, with --gpu: the fewest GPUs of each kind, for a rate of every model.
    Those without a stored profile are estimated. One kind takes what scenarios take, but --memory.

    Exit code 3: a model is not served, or its SLO is missed.

    \b
    Examples:
      interlace plan examples/planning/nine.toml
      interlace plan model.onnx --gpu l4,a100 --rate 500 --slo 20       # estimated
      interlace plan models/ --gpu l4,a100,h100 --rate detector=200     # estimated
      interlace plan examples/planning/kinds.toml --gpu 2080ti,a100   # which models on which
      interlace plan examples/planning/nine.toml --what-if rates=0.5,1,2,4 --draw sweep.svg
      interlace plan models/ --rate cnn_small=100 --slo cnn_small=150
      interlace plan examples/planning/nine.toml --page 8003
      interlace plan models/ --memory 2GB     # more models than memory, after profile --layers
    """
    outputs = PlanOutputs(
        explain or (), draw or (), what_if or (), compare, as_json, save, current, page, draft
    )
    overrides = _overrides(gpu, (rate, slo, price), memory, target)
    if target.suffix == ".toml":
        return plan_scenario(target, system_of(system), overrides, outputs)
    machine = _MachineOptions(device, gpus, cores, profiles, measured or ())
    _plan_folder(target, system, overrides, outputs, machine)


def _overrides(
    gpu: str | None, texts: Sequence[list[str] | None], memory: str | None, target: Path
) -> Overrides:
    """Where the target is one model's file, rates and SLOs need not name the model."""
    rate, slo, price = (given or [] for given in texts)
    if target.suffix in MODEL_SUFFIXES:
        rate, slo = (
            [text if "=" in text else f"{target.stem}={text}" for text in given]
            for given in (rate, slo)
        )
    rates, slos, prices = numbers("--rate", rate), numbers("--slo", slo), numbers("--price", price)
    return Overrides(gpu, rates, slos, prices, size_bytes("--memory", memory))


@dataclass(frozen=True, slots=True)
class _MachineOptions:
    """Which accelerators of this machine, and where profiles lie."""

    device: str
    gpus: str | None
    cores: str | None
    profiles: Path | None
    measured: Sequence[Path]


def _plan_folder(
    root: Path, system: str, overrides: Overrides, outputs: PlanOutputs, machine: _MachineOptions
) -> None:
    from interlace.assembly.machine_plan import machine_scenario  # scenarios start sooner without

    check_outputs(outputs)
    if outputs.page is not None:
        raise InputError(f"--page: {root} is no scenario (.toml)")
    if root.suffix in MODEL_SUFFIXES and not root.exists():
        raise InputError(f"{root}: there is no such file")
    if root.is_file() and (root.suffix not in MODEL_SUFFIXES or overrides.gpu is None):
        raise InputError(
            f"{root}: expected a scenario (.toml), a folder of models, or with --gpu KIND a model "
            f"({', '.join(MODEL_SUFFIXES)})"
        )
    if overrides.gpu is not None:
        _plan_estimated(root, system, overrides, outputs, machine)
        return
    if machine.measured:
        raise InputError("--measured corrects estimates: it takes --gpu KIND and a model folder")
    show_logs(console(stderr=True))
    row = system_of(system)

    def read(gpu: str | None) -> Scenario:
        if gpu is not None:
            raise InputError(f"--what-if gpu={gpu}: the plan is for this machine; use --gpu {gpu}")
        return machine_scenario(
            root,
            overrides.rates,
            overrides.slos,
            device=machine.device,
            gpus=machine.gpus,
            cores=machine.cores,
            profiles=machine.profiles,
            memory_bytes=overrides.memory_bytes,
            prices_per_hour=overrides.prices,
        )

    answer(read(None), row, outputs, read)


def _plan_estimated(
    root: Path,
    system: str,
    overrides: Overrides,
    outputs: PlanOutputs,
    machine: _MachineOptions,
) -> None:
    from interlace.assembly.estimation import EstimateTask, kinds_of
    from interlace.assembly.machine import default_profiles
    from interlace.cli.estimates import plan_estimated

    if overrides.memory_bytes is not None:
        raise InputError("--memory does not go with --gpu and a model folder")
    kinds, folder = kinds_of(overrides.gpu or ""), machine.profiles or default_profiles()
    task = EstimateTask(root, kinds, (), folder, machine.measured)
    wanted = overrides.rates, overrides.slos, overrides.prices
    plan_estimated(task, *wanted, system_of(system), outputs)
