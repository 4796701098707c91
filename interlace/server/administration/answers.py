"""Who answers administrative methods: a server, or a router for the nodes behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class MemoryRegions(Protocol):
    """Shared memory by name."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None: ...
    def unregister(self, name: str = "") -> None: ...


class AdminAnswers(Protocol):
    """One answer a method, as plain values in the form of Triton's JSON, or an awaitable of that.

    Each may raise ``ServeError``. An empty version is the newest one, an empty name all of them.
    """

    @property
    def regions(self) -> MemoryRegions: ...

    def ready(self) -> bool:
        """Whether load balancers should send requests here."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether that model answers; false for an unknown one."""

    def server_metadata(self) -> object: ...
    def models(self) -> object: ...
    def model_metadata(self, name: str, version: str = "") -> object: ...
    def model_config(self, name: str, version: str = "") -> object: ...
    def statistics(self, name: str = "", version: str = "") -> object: ...
    def index(self, ready_only: bool = False) -> object: ...
    def load(self, name: str, parameters: Mapping[str, object] | None = None) -> object:
        """Load or reload a model.

        ``parameters`` may hold ``config`` (JSON of ModelConfig) and ``file:PATH`` (bytes, or
        base64 text).
        """

    def unload(self, name: str) -> object: ...
    def node_state(self) -> object:
        """What routers and controllers are told."""

    def system_memory_status(self, region: str = "") -> object: ...
    def cuda_memory_status(self, region: str = "") -> object: ...
    def cuda_memory_register(self, region: str) -> object: ...
    def trace_settings(
        self, asked: Mapping[str, object] | None = None, model: str = ""
    ) -> object: ...
    def log_settings(self, asked: Mapping[str, object] | None = None) -> object: ...
