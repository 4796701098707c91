"""Quarantines as clients, the repository index and the operator see them."""

from __future__ import annotations

import logging

from interlace.control.registry import VersionRegistry, VersionState
from interlace.core.deployment_key import DeploymentKey
from interlace.server.model_table import ModelTable

_log = logging.getLogger(__name__)


class StatusUpdates:
    """Enters in registry and table which deployments are quarantined, and which serve again."""

    def __init__(self, registry: VersionRegistry, table: ModelTable) -> None:
        self._registry = registry
        self._table = table

    def quarantined(self, key: str, reason: str) -> None:
        """A deployment is not served for a while."""
        self._enter(key, VersionState.UNAVAILABLE, reason)
        _log.warning("quarantined %s: %s", DeploymentKey.parse(key).label, reason)

    def recovered(self, key: str) -> None:
        """A deployment that was quarantined serves again."""
        self._enter(key, VersionState.READY)
        _log.info("%s serves again", DeploymentKey.parse(key).label)

    def _enter(self, key: str, state: VersionState, reason: str = "") -> None:
        entry = self._registry.by_key(key)
        if entry is not None and entry.state is not VersionState.UNLOADING:
            self._registry.mark(entry.name, entry.version, state, reason)
        for served in self._table.all():
            if served.key == key:
                served.ready = state is VersionState.READY
