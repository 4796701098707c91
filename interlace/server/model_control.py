"""Loading, unloading and listing models, as the transports ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of one model in the repository: READY, LOADING, UNLOADING or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str = ""


class ModelControl(Protocol):
    """Load, unload and list; the rest of the server only ever reads the model table."""

    def index(self, ready_only: bool = False) -> Sequence[IndexEntry]: ...
    async def load(
        self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model and return when it serves.

        ``config`` overrides ``config.pbtxt`` (JSON of ModelConfig); ``files`` maps version-relative
        paths such as ``1/model.onnx`` to contents and is refused unless the operator allows it.

        Raises:
            ServeError: what failed, as the repository or the device reports it.
        """

    async def unload(self, name: str) -> None:
        """Take a model out of service: queued requests are answered first. Unknown names pass."""

    def ready(self) -> bool:
        """True once every model that can be served at start is, and until draining."""
