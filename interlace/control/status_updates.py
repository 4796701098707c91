"""Models that are set aside and come back: what clients, the index and the operator see of it."""

from __future__ import annotations

from collections.abc import Callable

from interlace.control.registry import VersionRegistry, VersionState
from interlace.server.model_table import ModelTable, model_of


class StatusUpdates:
    """Enters in the registry and the table what the engine says of models that were served."""

    def __init__(
        self, registry: VersionRegistry, table: ModelTable, say: Callable[[str], None]
    ) -> None:
        self._registry = registry
        self._table = table
        self._say = say

    def set_aside(self, key: str, reason: str) -> None:
        """A deployment is not served for a while."""
        self._enter(key, VersionState.UNAVAILABLE, reason)
        self._say(f"SET ASIDE: {_name(key)}: {reason}")

    def back(self, key: str) -> None:
        """A deployment that was set aside serves again."""
        self._enter(key, VersionState.READY)
        self._say(f"{_name(key)} serves again")

    def _enter(self, key: str, state: VersionState, reason: str = "") -> None:
        entry = self._registry.by_key(key)
        if entry is not None and entry.state is not VersionState.UNLOADING:
            self._registry.mark(entry.name, entry.version, state, reason)
        for served in self._table.all():
            if served.key == key:
                served.ready = state is VersionState.READY


def _name(key: str) -> str:
    return "/".join(model_of(key))
