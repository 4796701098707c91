"""What models take on an accelerator that is not here: declared, kept or packaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from interlace.core.errors import RepositoryError
from interlace.core.hardware import Gpu
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.profiling.packaged import NotMeasuredError, measured_kind, packaged
from interlace.profiling.profile_csv import ProfileTableError, read_profiles
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import SweepSettings
from interlace.repository.folder import PROFILE_FILE


class SimulatedProfiles(ProfileStore):
    """The ``ProfileStore`` of simulated accelerators of one kind: it finds, and keeps nothing.

    A model's profile is that in ``profile.csv`` beside it, else what was measured of the same files
    on such an accelerator, else what comes with the package under its name.
    """

    def __init__(self, folder: Path, gpu: Gpu) -> None:
        super().__init__(folder)
        self._gpu = gpu
        self._found: dict[tuple[str, str], Profile] = {}

    def profile(self, model: Model) -> Profile:
        """What a model takes there.

        Raises:
            RepositoryError: nobody says; where it is looked for.
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
