"""The models that are served, by public name and version; what each has done so far."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.request import Reply
from interlace.server.statistics.model_statistics import ModelStatistics

#: A name longer than this is cut in error texts.
NAME_CHARS: Final = 128


@dataclass(slots=True)
class ServedModel:
    """One deployed version: the model, and the statistics of its replies.

    ``config`` is the JSON of Triton's ModelConfig.
    """

    model: Model
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    config: Mapping[str, object] = field(default_factory=dict)
    ready: bool = True  #: false once it was set aside

    @property
    def key(self) -> str:
        return self.model.key


class ModelTable:
    """Public names to deployments. Replacing an entry is the switch of a reload."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self._found: dict[tuple[str, str], ServedModel] = {}  # resolved since the last change
        #: names that are known here, but are served only when this node is told to
        self.at_hand: Container[str] = ()
        #: why a model of the repository is not served, by name; empty for others
        self.why_missing: Callable[[str], str] = lambda name: ""

    def publish(self, served: ServedModel) -> None:
        """Route a name and version to this deployment from now on."""
        name, version = served.model.name, str(served.model.version)
        before = self._versions.setdefault(name, {}).get(version)
        if before is not None:
            served.statistics = before.statistics  # counters go on over a reload
        self._versions[name][version] = served
        self._found.clear()

    def withdraw(self, key: str) -> None:
        """Stop routing to that deployment; unknown keys pass."""
        for name, versions in list(self._versions.items()):
            for version, served in list(versions.items()):
                if served.key == key:
                    del versions[version]
            if not versions:
                del self._versions[name]
        self._found.clear()

    def resolve(self, name: str, version: str = "") -> ServedModel:
        """The deployment of a name; the newest version if none is asked for.

        Raises:
            ServeError: unknown name or version, or it is not served here at present.
        """
        found = self._found.get((name, version))
        if found is None:
            found = self._found[(name, version)] = self._look_up(name, version)
        return found

    def versions(self, name: str) -> list[str]:
        """The served versions of a name, oldest first; empty if unknown."""
        return sorted(self._versions.get(name, ()), key=int)

    def statistics(self, model: str) -> ModelStatistics | None:
        """Where a deployment is accounted for, also after a reload; ``None`` once withdrawn."""
        key = DeploymentKey.parse(model)
        served = self._versions.get(key.name, {}).get(str(key.version))
        return None if served is None else served.statistics

    def record(self, model: str, reply: Reply, now_ms: float) -> None:
        """Enter a reply of a deployment that no client asked directly."""
        if (statistics := self.statistics(model)) is not None:
            statistics.record(reply, now_ms)

    def all(self) -> list[ServedModel]:
        """Every deployment, by name and version."""
        return [
            served
            for _, versions in sorted(self._versions.items())
            for _, served in sorted(versions.items(), key=lambda item: int(item[0]))
        ]

    def _look_up(self, name: str, version: str) -> ServedModel:
        versions = self._versions.get(name)
        if versions is None and name in self.at_hand:
            raise ServeError(
                Reason.NOT_READY,
                f"model '{name}' is at hand, but this node is not told to serve it at present: "
                "routers ask those that are",
            )
        if versions is None:
            if why := self.why_missing(name):
                told = f"Request for unknown model: '{name}' is not served: {why}"
                raise ServeError(Reason.UNKNOWN_MODEL, told)
            short = name[:NAME_CHARS]
            near = get_close_matches(short, self._versions, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ServeError(
                Reason.UNKNOWN_MODEL, f"Request for unknown model: '{short}' is not found{hint}"
            )
        if not version:
            return versions[max(versions, key=int)]
        if version not in versions:
            known = ", ".join(sorted(versions, key=int))
            raise ServeError(
                Reason.UNKNOWN_MODEL,
                f"Request for unknown model: '{name}' version {version[:NAME_CHARS]} is not found; "
                f"served: {known}",
            )
        return versions[version]
