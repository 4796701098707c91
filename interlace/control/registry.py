"""The state of every model version in the repository, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from interlace.core.deployment_key import DeploymentKey
from interlace.core.model import Model
from interlace.server.administration.api import IndexEntry

#: The reason of a version that was taken out of service on request.
UNLOADED: Final = "unloaded"


class VersionState(Enum):
    """Triton's states of a version."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version, or a whole folder (version "") that could not be read."""

    name: str
    version: str
    state: VersionState
    reason: str = ""
    model: Model | None = None  #: the deployment that serves it, if one does


class VersionRegistry:
    """Entries by name and version."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], VersionEntry] = {}

    def put(self, entry: VersionEntry) -> None:
        """Enter or replace a version's state; a readable version replaces a broken folder."""
        if entry.version:
            self._entries.pop((entry.name, ""), None)
        self._entries[entry.name, entry.version] = entry

    def forget(self, name: str) -> None:
        """Forget the versions of a name that do not serve."""
        for key in [k for k, e in self._entries.items() if k[0] == name and e.model is None]:
            del self._entries[key]

    def serving(self, name: str) -> list[Model]:
        """The models that serve under a name."""
        return [e.model for e in self.all() if e.name == name and e.model is not None]

    def why_missing(self, name: str) -> str:
        """Why nothing serves under a name that is in the repository; empty if there is no such."""
        return next(
            (
                entry.reason or "it is being loaded"
                for entry in self._entries.values()
                if entry.name == name and entry.model is None and entry.reason != UNLOADED
            ),
            "",
        )

    def why_failed(self, name: str) -> str:
        """Why nothing serves under a name; empty while a version of it is being loaded."""
        known = [e for e in self.all() if e.name == name and e.reason != UNLOADED]
        if any(e.model is not None or not e.reason for e in known):
            return ""
        return known[0].reason if known else ""

    def missing(self) -> set[str]:
        """Names in the repository without a version that serves, unless unloaded on request."""
        known = {e.name for e in self._entries.values() if e.reason != UNLOADED}
        return known - {e.name for e in self._entries.values() if e.model is not None}

    def of_version(self, key: str) -> VersionEntry | None:
        """The entry of the version that a deployment key names, whatever serves it."""
        name, version, _ = DeploymentKey.parse(key)
        return self._entries.get((name, str(version)))

    def by_key(self, key: str) -> VersionEntry | None:
        """The entry that a deployment key serves."""
        entry = self.of_version(key)
        served = entry is not None and entry.model is not None and entry.model.key == key
        return entry if served else None

    def ready(self) -> dict[tuple[str, str], bool]:
        """By name and version: whether it is served. Versions unloaded on request are left out."""
        return {
            (entry.name, entry.version): entry.state is VersionState.READY
            for entry in self.all()
            if entry.reason != UNLOADED
        }

    def all(self) -> list[VersionEntry]:
        """Every entry, by name and version."""
        return [self._entries[key] for key in sorted(self._entries)]

    def index(self, ready_only: bool) -> Sequence[IndexEntry]:
        """The repository index as clients get it."""
        return [
            IndexEntry(entry.name, entry.version, entry.state.value, entry.reason)
            for entry in self.all()
            if not ready_only or entry.state is VersionState.READY
        ]
