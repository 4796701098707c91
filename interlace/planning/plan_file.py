"""A plan kept in a file: written by `interlace plan`, followed by `interlace serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from interlace.core.errors import RepositoryError
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Partition, Plan, possible
from interlace.core.rendering import json_text
from interlace.core.tables import TableError, read_json, read_table
from interlace.core.user_errors import InputError
from interlace.formats.page_cache import open_regular
from interlace.planning.follower import PlanFollower
from interlace.policy.base import System

#: 2: rates of slots are rows per second, and are called so.
_SCHEMA: Final = 2


class PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions by public model name, and the kind of accelerator they were made for."""

    schema: int
    system: str
    gpu_kind: str
    gpus: list[str]
    partitions: list[Partition]


def save_plan(path: Path, system: str, gpu: Gpu, plan: Plan) -> None:
    """Write a plan. Model names in it are the ones people use.

    Raises:
        OSError: the file cannot be written.
    """
    gpus = sorted({p.gpu for p in plan.partitions})
    kept = PlanFile(_SCHEMA, system, gpu.kind, gpus, list(plan.partitions))
    path.write_text(json_text(kept) + "\n", encoding="utf-8")


def load_plan(path: Path, gpu: Gpu, system: str) -> tuple[Partition, ...]:
    """The partitions of a plan file, moved to ``gpu``.

    Raises:
        InputError: not a plan file, or one for another system or other hardware; what differs.
    """
    kept = _read(path)
    _check_made_for(path, kept, gpu, system)
    if len({part.gpu for part in kept.partitions}) > 1:
        raise InputError(f"plan file {path}: it needs {len(kept.gpus)} accelerators, there is one")
    shares = [part.share_pct for part in kept.partitions]
    if not gpu.legal(shares):
        raise InputError(f"plan file {path}: {gpu.kind} cannot be cut into {shares} %")
    return tuple(replace(part, gpu=gpu.id) for part in kept.partitions)


def load_fleet_plan(path: Path, gpu: Gpu, system: str) -> tuple[Fleet, tuple[Partition, ...]]:
    """The accelerators of a plan file, each like ``gpu``, and its partitions on them.

    Raises:
        InputError: not a plan file, or one for another system or other hardware; what differs.
    """
    kept = _read(path)
    _check_made_for(path, kept, gpu, system)
    fleet = Fleet(tuple(replace(gpu, id=name) for name in kept.gpus))
    for one in fleet.gpus:
        shares = [part.share_pct for part in kept.partitions if part.gpu == one.id]
        if any(share not in gpu.shares_pct for share in shares):
            raise InputError(f"plan file {path}: {gpu.kind} cannot be cut into {shares} %")
    return fleet, tuple(kept.partitions)


def _check_made_for(path: Path, kept: PlanFile, gpu: Gpu, system: str) -> None:
    if kept.system != system:
        raise InputError(
            f"plan file {path}: {kept.system} made it and {system} would serve it: "
            f"serve with --system {kept.system}, or plan with --system {system}"
        )
    if kept.gpu_kind != gpu.kind:
        raise InputError(
            f"plan file {path}: it is for {kept.gpu_kind} and this is {gpu.kind}: plan again here"
        )


def following(system: System, path: Path | None, gpu: Gpu) -> System:
    """The system with its planner bound to a plan file, if there is one.

    Raises:
        InputError: the file is not a plan by this system for ``gpu``.
    """
    if path is None:
        return system
    return replace(system, planner=PlanFollower(load_plan(path, gpu, system.name), system.planner))


def unknown_models(system: System, names: Collection[str]) -> list[str]:
    """Models of the plan that ``system`` follows which are not among ``names``: places left empty.

    None if it follows no plan.
    """
    if not isinstance(system.planner, PlanFollower):
        return []
    planned = {slot.model for part in system.planner.partitions for slot in part.slots}
    return sorted(planned - set(names))


_FILE_BYTES: Final = 64 << 20


def _read(path: Path) -> PlanFile:
    try:
        with open_regular(path) as file:
            text = file.read(_FILE_BYTES + 1)
        if len(text) > _FILE_BYTES:
            raise InputError(f"plan file {path}: larger than {_FILE_BYTES} bytes")
        table = read_json(text, "a plan that interlace plan --save kept")
        schema = table.get("schema") if isinstance(table, dict) else None
        if isinstance(schema, int) and schema != _SCHEMA:
            raise InputError(
                f"plan file {path}: schema {schema}; this version reads {_SCHEMA}: plan again"
            )
        kept = read_table(table, PlanFile)
    except OSError as error:
        raise InputError(f"plan file {path}: {error.strerror}") from None
    except RepositoryError as error:
        raise InputError(f"plan file {error}") from None
    except TableError as error:
        raise InputError(f"plan file {path}: not a plan file: {error}") from None
    if not any(part.slots for part in kept.partitions):
        raise InputError(f"plan file {path}: no model has a place in it")
    _check(path, kept.partitions)
    return kept


def _check(path: Path, partitions: Sequence[Partition]) -> None:
    """Figures that a person may have edited are still possible, and no partition is there twice."""
    twice = [name for name, count in Counter(part.id for part in partitions).items() if count > 1]
    if twice:
        raise InputError(f"plan file {path}: partition {twice[0]} twice; expected each once")
    for part in partitions:
        if not possible(part):
            raise InputError(
                f"plan file {path}: partition {part.id}: expected every model once, batches "
                "from 1, rates and duty_ms from 0"
            )
