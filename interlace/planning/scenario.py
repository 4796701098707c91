"""A capacity question: models, rates, SLOs, and a kind of accelerator; from a TOML file or made."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from math import inf
from pathlib import Path
from types import MappingProxyType

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.loading import HostTier
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profile, Profiles
from interlace.core.tables import TableError, did_you_mean, parse_bytes, read_table
from interlace.core.user_errors import InputError
from interlace.perf.interference import NO_INTERFERENCE, ConstantFactor, Interference, busy_profiles
from interlace.perf.latency import doubts
from interlace.planning.app_demand import AppLoad, Budgets, app_demand
from interlace.planning.scenario_file import (
    GpuTable,
    ScenarioModel,
    ScenarioTable,
    app_loads,
    copy_names,
    of_copies,
    parted_workloads,
    rate_parts,
)
from interlace.profiling.corun import learned_interference, read_coruns
from interlace.profiling.profile_csv import (
    SUFFIXES,
    TOOL,
    ProfileTable,
    ProfileTableError,
    read_profiles,
    read_tool_output,
    stored_profile,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Models with rates and SLOs, the accelerators they are to share, and the models' profiles.

    ``limit`` is the most accelerators that a plan may use. With ``as_given`` the plan is for
    ``gpu`` itself, all of it used, as a server would. ``profiles`` are latencies without
    neighbours, ``interference`` what busy neighbours multiply them by; ``busy_profiles``, which
    follow from both, are what plans are made for. ``truth`` is how a simulated accelerator
    behaves, where that differs from ``profiles``. ``workloads`` are the tables of
    docs/workloads.md by model, ``folder`` is where their files lie; a model without one has
    independent arrivals.
    """

    demand: tuple[Demand, ...]
    gpu: Gpu
    profiles: Mapping[str, Profile]
    limit: int = 64
    price_per_hour: float | None = None  #: of one accelerator
    interference: Interference = NO_INTERFERENCE
    truth: Mapping[str, Profile] | None = None
    workloads: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    folder: Path = Path()
    notes: tuple[str, ...] = ()  #: what is assumed of the figures
    as_given: bool = False
    left_out: tuple[str, ...] = ()  #: models that cannot be planned for, and why
    apps: Mapping[str, AppLoad] = field(default_factory=dict)  #: whose stages are in ``demand``
    direct: tuple[Demand, ...] = ()  #: ``demand`` without apps, where there are some
    stages: Budgets = field(default_factory=dict)  #: of each app
    busy_profiles: Mapping[str, Profile] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "busy_profiles", busy_profiles(self.profiles, self.interference))

    @property
    def own(self) -> tuple[Demand, ...]:
        """What is asked of the models themselves, without apps."""
        if not self.apps:
            return self.demand
        return tuple(one for one in self.direct if one.slo_ms < inf)

    @property
    def promises(self) -> tuple[Demand, ...]:
        """What is asked of the models themselves, and of whole apps by their names."""
        apps = (Demand(n, a.rate_rps, a.slo_ms, cv=a.cv) for n, a in self.apps.items())
        return (*self.own, *apps)

    def members(self, names: Iterable[str]) -> tuple[str, ...]:
        """The models that these apps and models need, each once."""
        apps = self.apps
        return tuple(
            dict.fromkeys(
                model
                for name in names
                for model in (apps[name].app.members if name in apps else (name,))
            )
        )

    def with_own(self, demand: tuple[Demand, ...]) -> Scenario:
        """The scenario with another demand of the models themselves."""
        return replace(self, demand=demand, apps={}).with_apps(self.apps)

    def times(self, factor: float) -> Scenario:
        """The scenario with every rate multiplied."""
        if factor == 1.0:
            return self
        return self.asked({one.model: one.rows_per_s * factor for one in self.promises})

    def asked(
        self,
        rates_rps: Mapping[str, float] = MappingProxyType({}),
        slos_ms: Mapping[str, float] = MappingProxyType({}),
    ) -> Scenario:
        """The scenario with other rates (requests per second) and SLOs (ms) for some models.

        Raises:
            InputError: a model is not in it.
        """
        names = {one.model for one in self.own}.union(self.apps)
        for name in (*rates_rps, *slos_ms):
            if name not in names:
                raise InputError(f"the scenario has no model '{name}'{did_you_mean(name, names)}")
        if self.apps:
            apps = {
                name: one.asked(rates_rps.get(name), slos_ms.get(name))
                for name, one in self.apps.items()
            }
            rates_rps = {name: rate for name, rate in rates_rps.items() if name not in apps}
            slos_ms = {name: slo for name, slo in slos_ms.items() if name not in apps}
            plain = replace(self, demand=self.own, apps={})
            return plain.asked(rates_rps, slos_ms).with_apps(apps)
        demand = tuple(
            replace(
                one,
                rows_per_s=as_rows_per_s(rates_rps[one.model])
                if one.model in rates_rps
                else one.rows_per_s,
                slo_ms=slos_ms.get(one.model, one.slo_ms),
            )
            for one in self.demand
        )
        return replace(self, demand=demand)

    def with_apps(self, apps: Mapping[str, AppLoad]) -> Scenario:
        """The scenario with requests of apps besides those of its models."""
        if not apps:
            return self
        known = {one.model for one in self.demand}
        members = dict.fromkeys(model for one in apps.values() for model in one.app.members)
        called = (Demand(model, 0.0, inf) for model in members if model not in known)
        direct = (*self.demand, *called)
        demand, stages = app_demand(direct, apps, self.gpu, self.busy_profiles)
        return replace(self, demand=demand, apps=apps, direct=direct, stages=stages)


def read_scenario(
    path: Path | str,
    gpu: str | None = None,
    prices_per_hour: Mapping[str, float] | None = None,
    memory: str | None = None,
    host_memory: str | None = None,
) -> Scenario:
    """The scenario in a TOML file (docs/planning.md); ``gpu`` names another kind than the file's.

    ``prices_per_hour`` are costs of one accelerator by kind, beside and before the file's;
    ``memory`` for weights of each accelerator and ``host_memory`` for those of all models, such as
    "16GB", stand above the file's.

    Raises:
        InputError: the file is not a scenario; with the key, its value and what is expected.
    """
    path = Path(path)
    table = _read(path)
    kind = _kind(path, gpu if gpu is not None else table.gpu)
    own_kind = kind.kind if table.gpu is None else _kind(path, table.gpu).kind
    own_price = table.price_per_hour
    prices = own_price if isinstance(own_price, dict) else {own_kind: own_price}
    kind = _with_memory(path, table, kind, memory, host_memory)
    names = copy_names(path, table.models)
    profiles, unnamed = _profiles(path, table.profiles, kind.kind, names)
    if not table.models and not table.apps:
        raise InputError(f"{path}: models is missing; expected tables such as [models.resnet50]")
    apps = app_loads(path, table.apps, {one for each in names.values() for one in each}, profiles)
    return Scenario(
        tuple(
            _demand(name, one, part)
            for model, one in table.models.items()
            for name, part in zip(names[model], rate_parts(one), strict=True)
        ),
        kind,
        profiles,
        table.gpus,
        {**prices, **(prices_per_hour or {})}.get(kind.kind),
        _interference(path, table.slowdown, profiles),
        None if table.truth is None else _profiles(path, table.truth, kind.kind, names)[0],
        {
            name: workload
            for model, one in table.models.items()
            if one.workload is not None
            for name, workload in parted_workloads(names[model], one.workload)
        }
        | {name: one.workload for name, one in table.apps.items() if one.workload is not None},
        path.parent,
        _notes(unnamed if kind.kind != own_kind else (), kind.kind, profiles),
    ).with_apps(apps)


def _notes(unnamed: Iterable[str], kind: str, profiles: Profiles) -> tuple[str, ...]:
    return (
        *(f"{n} names no gpu_kind: its latencies are taken for those of {kind}" for n in unnamed),
        *(f"latencies of {n} are estimated" for n, one in profiles.items() if one.estimated),
        *(said for n, one in profiles.items() if (said := doubts(n, one))),
    )


def _read(path: Path) -> ScenarioTable:
    try:
        return read_table(tomllib.loads(path.read_text(encoding="utf-8")), ScenarioTable)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except TableError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def _kind(path: Path, wanted: str | GpuTable | None) -> Gpu:
    """A kind of accelerator by name, or as a table describes it."""
    known = ", ".join(GPU_KINDS)
    if wanted is None:
        raise InputError(f"{path}: gpu is missing; expected one of {known}")
    if isinstance(wanted, GpuTable):
        if 100 not in wanted.shares_pct:
            raise InputError(f"{path}: gpu.shares_pct is {wanted.shares_pct}; expected 100 in it")
        shares = tuple(sorted(set(wanted.shares_pct)))
        return Gpu("", wanted.kind, wanted.units, int(wanted.memory_gb * 1e9), shares)
    if wanted not in GPU_KINDS:
        hint = did_you_mean(wanted, GPU_KINDS)
        raise InputError(f"no kind of GPU '{wanted}'{hint}; known: {known}")
    return GPU_KINDS[wanted]


def with_weights_memory(gpu: Gpu, nbytes: int) -> Gpu:
    """The accelerator with ``nbytes`` of its memory for swapped weights.

    Raises:
        InputError: it has less memory.
    """
    if nbytes > gpu.memory_bytes:
        raise InputError(
            f"memory for weights is {nbytes / 1e9:g} GB; expected at most the "
            f"{gpu.memory_bytes / 1e9:g} of {gpu.kind}"
        )
    return replace(gpu, weights_bytes=nbytes)


def _with_memory(
    path: Path, table: ScenarioTable, kind: Gpu, memory: str | None, host_memory: str | None
) -> Gpu:
    if memory := memory or table.memory:
        kind = with_weights_memory(kind, _memory_bytes(path, "memory", memory))
    if host_memory := host_memory or table.host_memory:
        host_bytes = _memory_bytes(path, "host_memory", host_memory)
        kind = replace(kind, host=HostTier(host_bytes, table.disk_gb_per_s * 1e6))
    return kind


def _memory_bytes(path: Path, key: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise InputError(f"{path}: {key}: {error}; expected a size such as 16GB") from None


def _demand(name: str, asked: ScenarioModel, part: float) -> Demand:
    return Demand(
        name,
        as_rows_per_s(asked.rate_rps * part),
        asked.slo_ms,
        asked.max_batch,
        attainment=asked.attainment,
        cv=asked.cv,
    )


def _profiles(
    path: Path, files: list[str] | None, kind: str, names: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Profile], list[str]]:
    """Profiles on ``kind``, copies' too, and the files that do not say which kind theirs are of.

    Where none are named, those that come with the package.
    """
    if files is None:
        return of_copies(_packaged(path, kind), names), []
    found: dict[str, Profile] = {}
    unnamed: list[str] = []
    kinds: set[str] = set()
    for file in (one for name in files for one in _named(path, name)):
        table = _table(path, file, kind)
        shown = os.path.relpath(file, path.parent)
        for model, one in table.profiles.items():
            other = found.get(model, one)
            parts = {one.digest, other.digest} == {TOOL} and not other.points.keys() & one.points
            if other is not one and not parts:
                raise InputError(
                    f"{path}: profiles: {shown}: {model} on {kind} is in another file too"
                )
            found[model] = replace(one, points={**other.points, **one.points})
        kinds |= table.kinds
        if not table.kinds:
            unnamed.append(shown)
    if not found:
        raise InputError(
            f"{path}: profiles: no row is of {kind}; the rows are of {', '.join(sorted(kinds))}"
        )
    return of_copies(found, names), unnamed


def _named(path: Path, name: str) -> list[Path]:
    """The files that a name in ``profiles`` stands for: a file, a folder's tables, or a pattern."""
    place = path.parent / name
    if place.is_dir():
        what = "Is a directory without a .csv or .json file"
        known = (".csv", ".json", *SUFFIXES)
        found = [one for one in place.iterdir() if one.suffix in known]
    elif any(one in name for one in "*?["):
        what = "no file matches"
        found = [Path(one) for one in glob(str(place), recursive=True)]
    else:
        return [place]
    if not found:
        raise InputError(f"{path}: profiles: {name}: {what}; expected tables of profiles")
    return sorted(found)


def _interference(
    path: Path, slowdown: float | str, profiles: Mapping[str, Profile]
) -> Interference:
    """One factor for all, or learned from the co-runs in a file beside the scenario."""
    if not isinstance(slowdown, str):
        return ConstantFactor(slowdown)
    where = f"{path}: slowdown: {slowdown}"
    try:
        found = learned_interference(read_coruns(path.parent / slowdown), profiles)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from None
    except TableError as error:
        raise InputError(f"{where}: not a file of co-runs: {error}") from None
    except ValueError as error:
        raise InputError(f"{where}: it does not go with the profiles: {error}") from None
    if found is None:
        raise InputError(
            f"{where}: no pair of the scenario's models was measured long enough; measure some "
            "with `interlace profile --corun`"
        )
    return found


def _packaged(path: Path, kind: str) -> dict[str, Profile]:
    # It brings what measures models, and few scenarios ask for it.
    from interlace.profiling.packaged import NotMeasuredError, packaged

    try:
        return packaged(kind)
    except NotMeasuredError as error:
        raise InputError(
            f'{path}: profiles: none are named, as in profiles = ["profiles.csv"], and {error}'
        ) from None


def _table(path: Path, table: Path, kind: str) -> ProfileTable:
    try:
        if table.suffix == ".json":
            return stored_profile(table, kind)
        return read_tool_output(table, kind) or read_profiles(table, kind)
    except OSError as error:
        raise InputError(f"{path}: profiles: {table}: {error.strerror}") from None
    except ProfileTableError as error:
        raise InputError(str(error)) from None
