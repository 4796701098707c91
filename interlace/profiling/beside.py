"""Profiles as they are beside busy neighbours, where co-runs were measured."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from interlace.core.model import Model
from interlace.core.profile import Profile, Profiles
from interlace.perf.interference import slowed_profile
from interlace.perf.slowdown import LearnedInterference, fit_learned, from_profiles
from interlace.profiling.corun import CoRun, observations
from interlace.profiling.corun_file import corun_path, read_coruns
from interlace.perf.slowdown.learned import LearnedInterference, fit_learned
from interlace.perf.slowdown.observation import from_profiles
from interlace.profiling.corun import CoRun, corun_path, observations, read_coruns

_log = logging.getLogger(__name__)


def learned_interference(seen: Sequence[CoRun], profiles: Profiles) -> LearnedInterference | None:
    """Slowdowns learned from the co-runs of models with profiles; ``None`` if none ran long enough.

    Raises:
        ValueError: co-runs in shares below any of the profiles'.
    """
    usable = [one for one in observations(seen) if one.models <= profiles.keys()]
    return fit_learned(usable, from_profiles(profiles)) if usable else None


class NeighbourSlowdowns:
    """Co-runs of one kind of accelerator, as ``interlace profile --corun`` keeps them in a folder.

    Every model that it was asked about since is taken for a neighbour of the others. Without
    co-runs of models that are still the same, profiles stay as they were measured alone; a file
    that cannot be used is a warning.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._path = corun_path(folder, kind)
        self._digests: dict[str, str] = {}
        self._alone: dict[str, Profile] = {}

    def busy(self, models: Sequence[Model], alone: Mapping[str, Profile]) -> dict[str, Profile]:
        """The profiles of ``models``, by deployment key, beside busy neighbours."""
        asked = [one for one in models if one.key in alone and alone[one.key].points]
        for one in asked:
            self._digests[one.name] = one.digest
            self._alone[one.name] = replace(alone[one.key], model=one.name)
        learned = self._learned()
        if learned is None:
            return dict(alone)
        beside, busy = list(self._alone.values()), dict(alone)
        for one in asked:
            slowed = slowed_profile(replace(alone[one.key], model=one.name), learned, beside)
            busy[one.key] = replace(slowed, model=alone[one.key].model)
        _log.info("slowdowns by neighbours are learned from %s", self._path)
        return busy

    def _learned(self) -> LearnedInterference | None:
        try:
            return learned_interference(read_coruns(self._path, self._digests), self._alone)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: co-runs are not used: %s", self._path, error)
            return None
