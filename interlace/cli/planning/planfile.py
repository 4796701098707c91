"""A plan kept in a file: written by `interlace plan`, followed by `interlace serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from interlace.cli.failure import CommandError
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.policy.base import Planner, System

_SCHEMA: Final = 1


class PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    """Partitions by public model name, and the kind of accelerator they were made for."""

    schema: int
    system: str
    gpu_kind: str
    gpus: list[str]
    partitions: list[Partition]


def save(path: Path, system: str, gpu: Gpu, plan: Plan) -> None:
    """Write a plan. Model names in it are the ones people use.

    Raises:
        OSError: the file cannot be written.
    """
    gpus = sorted({p.gpu for p in plan.partitions})
    kept = PlanFile(_SCHEMA, system, gpu.kind, gpus, list(plan.partitions))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def load(path: Path, gpu: Gpu) -> tuple[Partition, ...]:
    """The partitions of a plan file, moved to ``gpu``.

    Raises:
        CommandError: not a plan file, or one for other hardware; what differs.
    """
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=PlanFile)
    except OSError as error:
        raise CommandError(f"--plan {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise CommandError(f"--plan {path}: not a plan file: {error}") from None
    if kept.schema != _SCHEMA:
        raise CommandError(f"--plan {path}: schema {kept.schema}; this version reads {_SCHEMA}")
    if kept.gpu_kind != gpu.kind:
        raise CommandError(
            f"--plan {path}: it is for {kept.gpu_kind} and this is {gpu.kind}: plan again here"
        )
    if len(kept.gpus) > 1:
        raise CommandError(f"--plan {path}: it needs {len(kept.gpus)} accelerators, there is one")
    shares = [part.share_pct for part in kept.partitions]
    if not gpu.legal(shares):
        raise CommandError(f"--plan {path}: {gpu.kind} cannot be cut into {shares} %")
    return tuple(replace(part, gpu=gpu.id) for part in kept.partitions)


def followed(system: System, path: Path | None, gpu: Gpu) -> System:
    """The system with its planner bound to a plan file, if there is one.

    Raises:
        CommandError: the file is not a plan for ``gpu``.
    """
    if path is None:
        return system
    return replace(system, planner=Pinned(load(path, gpu), system.planner))


@dataclass(frozen=True, slots=True)
class Pinned:
    """A planner that follows a plan file as long as what it says is deployed.

    Models are found by their public name, which a deployment key begins with. Slots of models that
    are not deployed are left out. Models that the file does not know are added to the partition
    where fewest others run, if one row meets their SLO there: a file is followed, not improved.
    Without a deployed model of the file, ``otherwise`` plans.
    """

    partitions: tuple[Partition, ...]
    otherwise: Planner

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        keys = {public_name(one.model): one.model for one in demand}
        kept = tuple(replace(part, slots=_named(part.slots, keys)) for part in self.partitions)
        if not any(part.slots for part in kept):
            return self.otherwise(demand, fleet, profiles, current)
        homes = {slot.model for part in kept for slot in part.slots}
        for one in (one for one in demand if one.model not in homes):
            least = min(kept, key=lambda part: (len(part.slots), -part.share_pct))
            added = replace(least, slots=(*least.slots, Slot(one.model, 1, one.rate_rps)))
            kept = tuple(added if part is least else part for part in kept)
        return Plan(kept)


def public_name(key: str) -> str:
    """The name people use of a deployment key such as ``resnet50/1#3``."""
    return key.partition("#")[0].rpartition("/")[0] or key


def _named(slots: Sequence[Slot], keys: Mapping[str, str]) -> tuple[Slot, ...]:
    return tuple(replace(slot, model=keys[slot.model]) for slot in slots if slot.model in keys)
