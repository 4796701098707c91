"""The models that are served, by public name and version; what each has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.server.ledger import Ledger


@dataclass(slots=True)
class Served:
    """One deployed version: the model, and the ledger of its replies."""

    model: Model
    share: str = ""  #: where it runs, for people: "core 0 (50 %), batch 8"
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def key(self) -> str:
        return self.model.key


class ModelTable:
    """Public names to deployments. Replacing an entry is the switch of a reload."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, Served]] = {}

    def publish(self, served: Served) -> None:
        """Route a name and version to this deployment from now on."""
        name, version = served.model.name, str(served.model.version)
        before = self._versions.setdefault(name, {}).get(version)
        if before is not None:
            served.ledger = before.ledger  # counters go on over a reload
        self._versions[name][version] = served

    def withdraw(self, key: str) -> None:
        """Stop routing to that deployment; unknown keys pass."""
        for name, versions in list(self._versions.items()):
            for version, served in list(versions.items()):
                if served.key == key:
                    del versions[version]
            if not versions:
                del self._versions[name]

    def resolve(self, name: str, version: str = "") -> Served:
        """The deployment of a name; the newest version if none is asked for.

        Raises:
            ServeError: unknown name or version.
        """
        versions = self._versions.get(name)
        if versions is None:
            near = get_close_matches(name, self._versions, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ServeError(
                Reason.UNKNOWN_MODEL, f"Request for unknown model: '{name}' is not found{hint}"
            )
        if not version:
            return versions[max(versions, key=int)]
        if version not in versions:
            known = ", ".join(sorted(versions, key=int))
            raise ServeError(
                Reason.UNKNOWN_MODEL,
                f"Request for unknown model: '{name}' version {version} is not found; "
                f"served: {known}",
            )
        return versions[version]

    def all(self) -> list[Served]:
        """Every deployment, by name and version."""
        return [
            served
            for _, versions in sorted(self._versions.items())
            for _, served in sorted(versions.items(), key=lambda item: int(item[0]))
        ]
