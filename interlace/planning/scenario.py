"""A capacity question in a TOML file: models, rates, SLOs, and a kind of accelerator."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, as_rows_per_s
from interlace.core.profile import Profile
from interlace.core.user_errors import InputError
from interlace.perf.interference import slowed
from interlace.planning.fields import known, near, number, whole
from interlace.planning.gpu_kind import gpu_kind
from interlace.profiling.packaged import NotMeasuredError, packaged
from interlace.profiling.profile_csv import ProfileTable, ProfileTableError, read_profiles

_KEYS: Final = ("gpu", "gpus", "price_per_hour", "slowdown", "profiles", "truth", "models")
_MODEL_KEYS: Final = ("rate_rps", "slo_ms", "max_batch", "attainment", "cv", "workload")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked, of which accelerators, with what is known of the models.

    ``profiles`` hold beside busy neighbours, which is what plans are made for.
    """

    demand: tuple[Demand, ...]
    gpu: Gpu
    limit: int
    profiles: Mapping[str, Profile]
    price_per_hour: float | None = None
    notes: tuple[str, ...] = ()  #: what is assumed of the figures
    alone: Mapping[str, Profile] | None = None  #: latencies without neighbours, where they differ
    truth: Mapping[str, Profile] | None = None  #: how a simulated GPU behaves, where told apart
    slowdown: float = 1.0  #: of busy neighbours
    workloads: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  #: as the file says

    def asked(self, rates: Mapping[str, float], slos: Mapping[str, float]) -> Scenario:
        """The scenario with other rates and SLOs.

        Raises:
            InputError: a model is not in it.
        """
        names = {one.model for one in self.demand}
        for name in (*rates, *slos):
            if name not in names:
                raise InputError(f"the scenario has no model '{name}'{near(name, names)}")
        demand = tuple(
            replace(
                one,
                rows_per_s=as_rows_per_s(rates[one.model])
                if one.model in rates
                else one.rows_per_s,
                slo_ms=slos.get(one.model, one.slo_ms),
            )
            for one in self.demand
        )
        return replace(self, demand=demand)


def read_scenario(
    path: Path, gpu: str | None = None, prices: Mapping[str, float] | None = None
) -> Scenario:
    """The scenario in ``path``; ``gpu`` names another kind than the file's.

    ``prices`` are costs of one accelerator an hour by kind, beside and before the file's.

    Raises:
        InputError: the file is not a scenario; the key and what is expected there.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML: {error}") from None
    known(path, "", table, _KEYS)
    kind = gpu_kind(path, gpu if gpu is not None else table.get("gpu"))
    own_kind = gpu_kind(path, table.get("gpu")).kind if "gpu" in table else kind.kind
    price = {**_prices(path, table.get("price_per_hour"), own_kind), **(prices or {})}
    profiles, unnamed = _profiles(path, table.get("profiles"), kind.kind)
    slowdown = number(path, "slowdown", table.get("slowdown", 1.0), least=1.0)
    return Scenario(
        _demand(path, table.get("models")),
        kind,
        whole(path, "gpus", table.get("gpus", 64)),
        {name: slowed(one, slowdown) for name, one in profiles.items()},
        price.get(kind.kind),
        tuple(_assumed(name, kind.kind) for name in unnamed if kind.kind != own_kind),
        profiles,
        _truth(path, table.get("truth"), kind.kind),
        slowdown,
        _workloads(path, table.get("models")),
    )


def _truth(path: Path, files: object, kind: str) -> Mapping[str, Profile] | None:
    return None if files is None else _profiles(path, files, kind)[0]


def _workloads(path: Path, models: object) -> dict[str, Mapping[str, object]]:
    """The tables that say how requests are spread over time; `interlace simulate` reads them."""
    found: dict[str, Mapping[str, object]] = {}
    for name, asked in models.items() if isinstance(models, dict) else ():
        if "workload" in asked:
            if not isinstance(asked["workload"], dict):
                raise InputError(f"{path}: models.{name}.workload: expected a table with a kind")
            found[name] = asked["workload"]
    return found


def _assumed(table: str, kind: str) -> str:
    return f"{table} names no gpu_kind: its latencies are taken for those of {kind}"


def _prices(path: Path, price: object, own_kind: str) -> dict[str, float]:
    """Cost an hour by kind, from a number for the scenario's own kind or from a table."""
    if price is None:
        return {}
    if not isinstance(price, dict):
        return {own_kind: number(path, "price_per_hour", price)}
    return {kind: number(path, f"price_per_hour.{kind}", usd) for kind, usd in price.items()}


def _demand(path: Path, models: object) -> tuple[Demand, ...]:
    if not isinstance(models, dict) or not models:
        raise InputError(f"{path}: no models; expected tables such as [models.resnet50]")
    return tuple(_one(path, name, asked) for name, asked in models.items())


def _one(path: Path, name: str, asked: object) -> Demand:
    where = f"models.{name}"
    if not isinstance(asked, dict):
        raise InputError(f"{path}: {where}: expected a table with rate_rps and slo_ms")
    known(path, f"{where}.", asked, _MODEL_KEYS)
    for key in ("rate_rps", "slo_ms"):
        if key not in asked:
            raise InputError(f"{path}: {where}.{key} is missing")
    return Demand(
        name,
        as_rows_per_s(number(path, f"{where}.rate_rps", asked["rate_rps"])),
        number(path, f"{where}.slo_ms", asked["slo_ms"], least=1e-3),
        whole(path, f"{where}.max_batch", asked.get("max_batch", 32)),
        attainment=number(path, f"{where}.attainment", asked.get("attainment", 0.99), 0.5, 0.9999),
        cv=number(path, f"{where}.cv", asked.get("cv", 1.0), 0.01, 100.0),
    )


def _profiles(path: Path, files: object, kind: str) -> tuple[dict[str, Profile], list[str]]:
    """Profiles on ``kind``, and the files that do not say which kind theirs are of.

    Where none are named, those that come with the package.
    """
    if files is None:
        return _packaged(path, kind), []
    if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
        raise InputError(f'{path}: profiles: expected file names such as ["profiles.csv"]')
    found: dict[str, Profile] = {}
    unnamed: list[str] = []
    kinds: set[str] = set()
    for name in files:
        table = _table(path, path.parent / name, kind)
        for model in table.profiles.keys() & found.keys():
            raise InputError(f"{path}: profiles: {name}: {model} on {kind} is in another file too")
        found |= table.profiles
        kinds |= table.kinds
        if not table.kinds:
            unnamed.append(name)
    if not found:
        raise InputError(
            f"{path}: profiles: no row is of {kind}; the rows are of {', '.join(sorted(kinds))}"
        )
    return found, unnamed


def _packaged(path: Path, kind: str) -> dict[str, Profile]:
    try:
        return packaged(kind)
    except NotMeasuredError as error:
        raise InputError(
            f'{path}: profiles: none are named, as in profiles = ["profiles.csv"], and {error}'
        ) from None


def _table(path: Path, table: Path, kind: str) -> ProfileTable:
    try:
        return read_profiles(table, kind)
    except OSError as error:
        raise InputError(f"{path}: profiles: {table}: {error.strerror}") from None
    except ProfileTableError as error:
        raise InputError(str(error)) from None
