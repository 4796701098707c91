"""Many models alike in a few words of a scenario: names, parts of the rate, profiles, workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from interlace.core.profile import Profile
from interlace.core.user_errors import InputError
from interlace.planning.scenario_file import ScenarioModel


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
