"""Profiles that come with the package: measured on GPUs we had, none for those we had not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from interlace.core.errors import RepositoryError
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.profile_csv import ProfileTableError, read_profiles
from interlace.profiling.profile_file import profile_of, read_record
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import SweepSettings
from interlace.repository.folder import PROFILE_FILE

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
        NotMeasuredError: there are none; what there is, and how to get some.
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


class SimulatedProfiles(ProfileStore):
    """The ``ProfileStore`` of simulated accelerators of one kind: it finds, and keeps nothing.

    A model's profile is that in ``profile.csv`` beside it, else one measured with the same files
    on such an accelerator, else the package's own profile of that name.
    """

    def __init__(self, folder: Path, gpu: Gpu) -> None:
        super().__init__(folder)
        self._gpu = gpu
        self._found: dict[tuple[str, str], Profile] = {}

    def profile(self, model: Model) -> Profile:
        """Return a model's profile on this kind of accelerator.

        Raises:
            RepositoryError: there is none, or it is unusable; it names the places looked at.
        """
        known = model.path, model.digest
        if known not in self._found:
            self._found[known] = self._declared(model) or self._measured(model)
        return replace(self._found[known], model=model.key)

    def find(self, model: Model, gpu: Gpu, settings: SweepSettings) -> Profile | None:
        try:
            return self.profile(model)
        except RepositoryError:
            return None  # told when the model was registered

    def _declared(self, model: Model) -> Profile | None:
        path, kind = Path(model.path) / PROFILE_FILE, self._gpu.kind
        if not path.exists():
            return None
        try:
            table = read_profiles(path, kind)
        except (ProfileTableError, OSError) as error:
            raise RepositoryError(str(path), str(error), "a table of latencies") from None
        if not table.profiles:
            kinds = ", ".join(sorted(table.kinds))
            raise RepositoryError(str(path), f"rows of {kinds} alone", f"rows of {kind}")
        if model.name not in table.profiles and len(table.profiles) > 1:
            names = ", ".join(table.profiles)
            raise RepositoryError(str(path), f"rows of {names}", f"rows of {model.name}")
        return table.profiles.get(model.name) or next(iter(table.profiles.values()))

    def _measured(self, model: Model) -> Profile:
        here = replace(self._gpu, kind=measured_kind(self._gpu.kind))
        kept = self.recall(model, here)
        if kept is not None:
            return replace(kept.profile, gpu_kind=self._gpu.kind)
        try:
            there = packaged(self._gpu.kind)
        except NotMeasuredError:
            there = {}
        if model.name not in there:
            raise RepositoryError(
                model.path,
                f"no profile of {model.name} on {self._gpu.kind}",
                f"{PROFILE_FILE} in it (model,share_pct,batch,latency_ms), or one that "
                f"interlace profile measured on such a GPU, in {self.folder}",
            )
        return there[model.name]
