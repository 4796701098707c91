"""What an assigned node could serve: told to whoever plans, before anything is loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from interlace.control.deployments import demand_of
from interlace.control.ensembles import Ensembles
from interlace.control.model_preparer import ModelPreparer, failure_text
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.core.model import Format, Model
from interlace.core.node import NodeModel
from interlace.device.base import Registers
from interlace.profiling.store import FillResult
from interlace.profiling.sweep import OnSweepStep

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class AvailableModels:
    """The newest version of every model in the repository, opened and profiled once, not loaded."""

    _preparation: ModelPreparer
    _device: Registers
    _registry: VersionRegistry
    _ensembles: Ensembles
    found: dict[str, NodeModel] = field(default_factory=dict)  #: by public name
    #: A model is registered under one key whoever looks at it.
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def survey(self, on_step: OnSweepStep) -> None:
        """Look at all of them; what is new is measured, of what is broken the index says why.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        async with self._looking:
            names = await self._preparation.names()
            every = await asyncio.gather(*map(self._open, names))
            opened = [one for one in every if one is not None]
            self._take(opened, await self._preparation.profiles(opened, on_step))
            for model in opened:
                self._device.forget(model.key)
            self._name_apps()

    async def update(self, new: Collection[str], gone: Collection[str]) -> None:
        """Look at models that came or changed, while others are served; forget those that went."""
        async with self._looking:
            for name in gone:
                self.found.pop(name, None)
                self._ensembles.withdraw(name)
            for name in new:
                model = await self._open(name)
                if model is not None:
                    self._take([model], await self._preparation.profile_quickly(model))
                    self._device.forget(model.key)
                else:
                    self.found.pop(name, None)
            self._name_apps()

    def _name_apps(self) -> None:
        """Say of each model which apps need it."""
        every = self._ensembles.offered()
        for name, one in self.found.items():
            apps = {app: members for app, members in every.items() if name in members}
            self.found[name] = replace(one, apps=apps)

    def _take(self, opened: Sequence[Model], filled: FillResult) -> None:
        for model in opened:
            profile = filled.profiles.get(model.key)
            if profile is None:
                self._broken(model.name, filled.failures.get(model.key, "it has no profile"))
                continue
            demand = replace(demand_of(model), model=model.name)
            named = replace(profile, model=model.name)
            self.found[model.name] = NodeModel(demand, model.digest, named)

    async def _open(self, name: str) -> Model | None:
        try:
            folder = await self._preparation.found(name)
            if folder is None or folder.error is not None:
                self._broken(name, folder.error if folder and folder.error else "it is gone")
                return None
            draft = await self._preparation.draft(name, folder.versions[-1])
            if draft.format is Format.ENSEMBLE:
                self._ensembles.offer(draft)
                return None
            model = await self._preparation.open(draft, generation=0)
            self._device.register(model)
        except Exception as error:
            self._broken(name, failure_text(error))
            return None
        return model

    def _broken(self, name: str, reason: str) -> None:
        self._registry.put(VersionEntry(name, "", VersionState.UNAVAILABLE, reason))
        _LOG.error("%s cannot be served: %s", name, reason)
