"""A capacity question in a TOML file: models, rates, SLOs, and a kind of accelerator."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from interlace.cli.failure import CommandError
from interlace.core.hardware import Gpu
from interlace.core.kinds import KINDS
from interlace.core.plan import Demand
from interlace.core.profile import Profile
from interlace.measure.profilecsv import ProfileTableError, read_profiles

_KEYS: Final = ("gpu", "gpus", "price_per_hour", "profiles", "models")
_KIND_KEYS: Final = ("kind", "units", "memory_gb", "shares_pct")
_MODEL_KEYS: Final = ("rate_rps", "slo_ms", "max_batch", "attainment", "cv")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked, of which accelerators, with what is known of the models."""

    demand: tuple[Demand, ...]
    gpu: Gpu
    limit: int
    profiles: Mapping[str, Profile]
    price_per_hour: float | None = None

    def asked(self, rates: Mapping[str, float], slos: Mapping[str, float]) -> Scenario:
        """The scenario with other rates and SLOs.

        Raises:
            CommandError: a model is not in it.
        """
        names = {one.model for one in self.demand}
        for name in (*rates, *slos):
            if name not in names:
                raise CommandError(f"the scenario has no model '{name}'{_near(name, names)}")
        demand = tuple(
            replace(
                one,
                rate_rps=rates.get(one.model, one.rate_rps),
                slo_ms=slos.get(one.model, one.slo_ms),
            )
            for one in self.demand
        )
        return replace(self, demand=demand)


def read_scenario(path: Path, gpu: str | None = None) -> Scenario:
    """The scenario in ``path``; ``gpu`` names another kind than the file's.

    Raises:
        CommandError: the file is not a scenario; the key and what is expected there.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: not TOML: {error}") from None
    _known(path, "", table, _KEYS)
    kind = kind_of(path, gpu if gpu is not None else table.get("gpu"))
    price = table.get("price_per_hour")
    return Scenario(
        _demand(path, table.get("models")),
        kind,
        int(_number(path, "gpus", table.get("gpus", 64), least=1)),
        _profiles(path, table.get("profiles"), kind.kind),
        None if price is None else _number(path, "price_per_hour", price),
    )


def kind_of(path: Path, wanted: object) -> Gpu:
    """A kind of accelerator by name, or described by a table.

    Raises:
        CommandError: there is no such kind, or the table says too little.
    """
    if isinstance(wanted, str):
        if wanted not in KINDS:
            raise CommandError(
                f"no kind of GPU '{wanted}'{_near(wanted, KINDS)}; known: {', '.join(KINDS)}"
            )
        return KINDS[wanted]
    if not isinstance(wanted, dict):
        raise CommandError(f"{path}: gpu is missing; expected one of {', '.join(KINDS)}")
    _known(path, "gpu.", wanted, _KIND_KEYS)
    given = wanted.get("shares_pct")
    shares = list(given) if isinstance(given, list) else []
    if 100 not in shares or not all(share in range(1, 101) for share in shares):
        raise CommandError(
            f"{path}: gpu.shares_pct: expected percentages from 1 to 100, 100 among them"
        )
    return Gpu(
        "",
        str(wanted.get("kind", "custom")),
        int(_number(path, "gpu.units", wanted.get("units", 100), least=1)),
        int(_number(path, "gpu.memory_gb", wanted.get("memory_gb", 16)) * 1e9),
        tuple(sorted(set(shares))),
    )


def _demand(path: Path, models: object) -> tuple[Demand, ...]:
    if not isinstance(models, dict) or not models:
        raise CommandError(f"{path}: no models; expected tables such as [models.resnet50]")
    found = []
    for name, asked in models.items():
        where = f"models.{name}"
        if not isinstance(asked, dict):
            raise CommandError(f"{path}: {where}: expected a table with rate_rps and slo_ms")
        _known(path, f"{where}.", asked, _MODEL_KEYS)
        for key in ("rate_rps", "slo_ms"):
            if key not in asked:
                raise CommandError(f"{path}: {where}.{key} is missing")
        attainment = _number(path, f"{where}.attainment", asked.get("attainment", 0.99))
        if not 0.5 <= attainment < 1:
            raise CommandError(
                f"{path}: {where}.attainment is {attainment:g}; expected 0.5 to 0.9999"
            )
        found.append(
            Demand(
                name,
                _number(path, f"{where}.rate_rps", asked["rate_rps"]),
                _number(path, f"{where}.slo_ms", asked["slo_ms"], least=1e-3),
                int(_number(path, f"{where}.max_batch", asked.get("max_batch", 32), least=1)),
                attainment=attainment,
                cv=_number(path, f"{where}.cv", asked.get("cv", 1.0), least=1e-3),
            )
        )
    return tuple(found)


def _profiles(path: Path, files: object, kind: str) -> dict[str, Profile]:
    if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
        raise CommandError(f'{path}: profiles: expected file names such as ["profiles.csv"]')
    found: dict[str, Profile] = {}
    for name in files:
        table = path.parent / name.format(gpu=kind)
        try:
            found |= read_profiles(table, kind)
        except OSError as error:
            raise CommandError(f"{path}: profiles: {table}: {error.strerror}") from None
        except ProfileTableError as error:
            raise CommandError(str(error)) from None
    return found


def _number(path: Path, key: str, value: Any, least: float = 0.0) -> float:
    legal = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not legal or not least <= value < 1e15:
        raise CommandError(f"{path}: {key} is {value!r}; expected a number of {least:g} or more")
    return float(value)


def _known(path: Path, prefix: str, table: Mapping[str, object], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise CommandError(
                f"{path}: unknown key {prefix}{key}{_near(key, keys)}; known: {', '.join(keys)}"
            )


def _near(name: str, known: object) -> str:
    names = list(known) if isinstance(known, (list, tuple, set, Mapping)) else []
    near = get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
