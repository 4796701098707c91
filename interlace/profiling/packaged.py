"""Profiles that come with the package: measured on GPUs we had, none for those we had not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from interlace.core.profile import Profile
from interlace.profiling.profile_file import profile_of, read_record

#: Where they lie: a folder for each kind, a file for each model, as a ``ProfileStore`` writes them.
FOLDER: Final = Path(__file__).parent / "measured"
#: What the kinds of ``core.kinds`` are called by the driver that measures them.
_NAMES: Final[Mapping[str, str]] = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm5-141gb"}
#: Of one model by name, version and digest, or of an architecture; co-runs lie there too.
_FILES: Final = ("*-*-*.json", "architecture-*.json")


class NotMeasuredError(LookupError):
    """The package has no profiles of that kind: none were measured yet."""


def measured_kind(kind: str) -> str:
    """What the driver that measures calls a kind."""
    return _NAMES.get(kind, kind)


def packaged(kind: str, folder: Path = FOLDER) -> dict[str, Profile]:
    """Profiles by model name, measured on GPUs of that kind.

    Raises:
        NotMeasured: there are none; what there is, and how to get some.
        ValueError: a file is damaged.
    """
    here = folder / quote(measured_kind(kind), safe="")
    files = _files(here)
    if not files:
        known = ", ".join(packaged_kinds(folder)) or "none"
        raise NotMeasuredError(
            f"no profiles of {kind} come with this package: none were measured yet "
            f"(kinds with profiles: {known}); scripts/gpu-check measures them on such a GPU, "
            f"interlace profile measures your own models"
        )
    return dict(_read(path, kind) for path in files)


def packaged_kinds(folder: Path = FOLDER) -> tuple[str, ...]:
    """The kinds, as the driver's folders are called, that there are profiles of."""
    return tuple(sorted(here.name for here in folder.glob("*") if _files(here)))


def _files(here: Path) -> list[Path]:
    return sorted({path for pattern in _FILES for path in here.glob(pattern)})


def _read(path: Path, kind: str) -> tuple[str, Profile]:
    try:
        record = read_record(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: not a profile ({error})") from None
    profile = profile_of(record, record.model.name)
    return record.model.name, replace(profile, gpu_kind=kind)
