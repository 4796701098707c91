"""The keys of a scenario file (docs/planning.md), and the copies of models that it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from interlace.apps.graph import Stage, staged
from interlace.core.profile import Profile, Profiles
from interlace.core.tables import did_you_mean
from interlace.core.user_errors import InputError
from interlace.planning.app_demand import AppLoad

#: Above every rate, time and size that is meant seriously.
_MOST = 1e12

_Price = Annotated[float, Meta(ge=0, le=_MOST)]
_Count = Annotated[int, Meta(ge=1, le=100_000)]
_Percent = Annotated[int, Meta(ge=1, le=100)]
_SHARES = Meta(
    min_length=1, description="whole percentages such as [20, 40, 50, 60, 80, 100], 100 among them"
)
_FileName = Annotated[
    str, Meta(pattern=r"^[^\x00-\x1f]+$", description='a file name such as "profiles.csv"')
]
_FILES = Meta(min_length=1, description='file names such as ["profiles.csv"]')


class GpuTable(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[gpu]``: a kind of accelerator that has no known name.

    Keys:
        memory_gb: memory of one.
        shares_pct: shares that a partition may have.
        kind: its name.
        units: number of its units (SMs) to divide.
    """

    memory_gb: Annotated[float, Meta(ge=0.001, le=_MOST)]
    shares_pct: Annotated[list[_Percent], _SHARES]
    kind: Annotated[str, Meta(min_length=1)] = "custom"
    units: _Count = 100


class ScenarioModel(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[models.NAME]``: what is asked of one model.

    Keys:
        rate_rps: requests per second, of all copies together.
        slo_ms: SLO, from arrival to answer.
        max_batch: most rows in one execution.
        attainment: fraction of requests that must be within the SLO.
        cv: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        copies: plan this number of equal models.
        zipf: exponent of the Zipf law that divides the rate among copies.
        workload: arrivals to simulate instead of rate_rps and cv.
    """

    rate_rps: Annotated[float, Meta(ge=0, le=_MOST)]
    slo_ms: Annotated[float, Meta(ge=1e-3, le=_MOST)]
    max_batch: _Count = 32
    attainment: Annotated[float, Meta(ge=0.5, le=0.9999)] = 0.99
    cv: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    copies: _Count | None = None
    zipf: Annotated[float, Meta(ge=0, le=10)] = 0.0
    workload: dict[str, object] | None = None


class ScenarioStage(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[apps.NAME.stages.STAGE]``: one model of an app.

    Keys:
        model: its name.
        after: stages that it waits for; none for the first.
        rows: rows of a request on average. A stage after several runs one row.
    """

    model: str
    after: list[str] = []
    rows: Annotated[float, Meta(ge=0, le=1e6)] = 1.0


class ScenarioAppTable(Struct, forbid_unknown_fields=True, frozen=True):
    """Table ``[apps.NAME]``: requests that need several models, within one SLO.

    Keys:
        rate_rps: requests per second.
        slo_ms: SLO, from arrival to the last stage's answer.
        stages: the models.
        split: rule that divides the SLO for planning.
        cv: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        workload: arrivals to simulate instead of rate_rps and cv.
    """

    rate_rps: Annotated[float, Meta(ge=0, le=_MOST)]
    slo_ms: Annotated[float, Meta(ge=1e-3, le=_MOST)]
    stages: dict[str, ScenarioStage]
    split: Literal["exact", "equal", "work", "nexus", "inferline", "harpagon"] = "exact"
    cv: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    workload: dict[str, object] | None = None


def app_loads(
    path: Path, tables: Mapping[str, ScenarioAppTable], models: Collection[str], known: Profiles
) -> dict[str, AppLoad]:
    """The apps of a scenario.

    Raises:
        InputError: an app has a model's name or a wrong graph, or a model has no profile.
    """
    found = {}
    for name, one in tables.items():
        where = f"{path}: apps.{name}"
        if name in models:
            raise InputError(f"{where}: there is a model of that name; expected another name")
        for stage, own in one.stages.items():
            if own.model not in known:
                hint = did_you_mean(own.model, known)
                raise InputError(
                    f"{where}.stages.{stage}.model: '{own.model}' has no profile{hint}; "
                    f"known: {', '.join(known)}"
                )
        stages = {n: Stage(o.model, tuple(o.after), o.rows) for n, o in one.stages.items()}
        try:
            app = staged(name, stages)
        except ValueError as error:
            raise InputError(f"{where}.stages: {error}") from None
        found[name] = AppLoad(app, one.rate_rps, one.slo_ms, one.split, one.cv)
    return found


class ScenarioTable(Struct, forbid_unknown_fields=True, frozen=True):
    """The keys of a scenario file outside of tables.

    Keys:
        models: the models. Those that only apps call need no table.
        apps: apps of several models.
        gpu: kind of accelerator, by name or as a table.
        gpus: most accelerators that a plan may use.
        memory: memory of each accelerator for swapped weights, such as "16GB".
        host_memory: host memory for weights, such as "64GB". Without it all weights are in it.
        disk_gb_per_s: read rate of the host's disk.
        price_per_hour: price of one accelerator, or a table by kind.
        slowdown: factor of latency beside busy neighbours, or a file of co-runs.
        profiles: files with the models' profiles. Needed: none are packaged yet.
        truth: files with profiles that the simulated accelerators follow instead.
    """

    models: dict[str, ScenarioModel] = {}
    apps: dict[str, ScenarioAppTable] = {}
    gpu: str | GpuTable | None = None
    gpus: _Count = 64
    memory: str | None = None
    host_memory: str | None = None
    disk_gb_per_s: Annotated[float, Meta(ge=1e-3, le=_MOST)] = 2.5
    price_per_hour: _Price | dict[str, _Price] | None = None
    slowdown: Annotated[float, Meta(ge=1, le=_MOST)] | _FileName = 1.0
    profiles: Annotated[list[_FileName], _FILES] | None = None
    truth: Annotated[list[_FileName], _FILES] | None = None


def copy_names(path: Path, models: Mapping[str, ScenarioModel]) -> dict[str, list[str]]:
    """What each table stands for: one model of its name, or ``NAME-0`` and on."""
    found = {
        model: [model] if one.copies is None else [f"{model}-{n}" for n in range(one.copies)]
        for model, one in models.items()
    }
    counts = Counter(name for names in found.values() for name in names)
    for name, count in counts.items():
        if count > 1:
            raise InputError(f"{path}: models.{name}: also a copy of another; expected one of it")
    return found


def rate_parts(asked: ScenarioModel) -> list[float]:
    """The part of the rate of each copy, the first the most popular."""
    weights = [(place + 1) ** -asked.zipf for place in range(asked.copies or 1)]
    return [weight / sum(weights) for weight in weights]


def parted_workloads(
    names: Sequence[str], table: Mapping[str, object]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The table of each copy: of a trace of many functions, its part."""
    for place, name in enumerate(names):
        parted = table.get("kind") in ("azure", "azure-2021") and len(names) > 1
        part = {"part": f"{place + 1}/{len(names)}"} if parted else {}
        yield name, {**part, **table}


def of_copies(
    profiles: Mapping[str, Profile], names: Mapping[str, Sequence[str]]
) -> dict[str, Profile]:
    """The profiles, and each copy's under its name."""
    found = dict(profiles)
    for model, copies in names.items():
        if model in profiles:
            found |= {name: replace(profiles[model], model=name) for name in copies}
    return found
