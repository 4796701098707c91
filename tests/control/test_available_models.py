"""What a node could serve, while it looks and is told that files have changed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from interlace.control.available_models import AvailableModels
from interlace.control.registry import VersionRegistry
from interlace.core.plan import Demand
from interlace.profiling.store import FillResult
from interlace.profiling.sweep import no_progress
from interlace.testing.worlds import line_profile


class Preparation:
    """One model, which can be measured while it is registered; each step takes a moment."""

    def __init__(self) -> None:
        self.registered: set[str] = set()

    def register(self, model: Any) -> None:
        self.registered.add(model.key)

    def forget(self, key: str) -> None:
        self.registered.remove(key)

    def offered(self) -> dict[str, Any]:
        return {}

    async def names(self) -> list[str]:
        return ["m"]

    async def found(self, name: str) -> Any:
        return SimpleNamespace(error=None, versions=["1"])

    async def draft(self, name: str, version: str) -> Any:
        return SimpleNamespace(format=None)

    async def open(self, draft: Any, generation: int) -> Any:
        return SimpleNamespace(name="m", key="m/1#0", digest="digest")

    async def profiles(self, opened: Any, on_step: Any) -> FillResult:
        await asyncio.sleep(0.02)
        made: Any = {one.key: line_profile(one.key) for one in opened if one.key in self.registered}
        failures = {one.key: "is not registered" for one in opened if one.key not in made}
        return FillResult(made, failures)

    async def profile_quickly(self, model: Any) -> FillResult:
        return await self.profiles([model], None)


async def test_who_looks_while_files_change_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "interlace.control.available_models.demand_of", lambda model: Demand(model.key, 1.0, 50.0)
    )
    preparation: Any = Preparation()
    registry = VersionRegistry()
    at_hand = AvailableModels(preparation, preparation, registry, preparation)
    await asyncio.gather(at_hand.survey(no_progress), at_hand.update(["m"], []))
    assert set(at_hand.found) == {"m"} and not preparation.registered
    assert not list(registry.all())
