"""The first start: every model that can be served is, every other says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from interlace.control.deployments import Deployments
from interlace.control.preparation import Preparation, Prepared, prepared
from interlace.control.registry import Entry, Registry, State
from interlace.core.errors import RepositoryError, ServeError
from interlace.core.model import Model
from interlace.device.base import Registers
from interlace.measure.progress import Progress
from interlace.repository import Draft

#: How long a first plan may take to stand in full before serving begins with what there is.
_SETTLE_S = 60.0
#: A line for the operator.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Opened:
    draft: Draft
    model: Model


class Startup:
    """Reads, opens, profiles and deploys a repository, all models planned together."""

    def __init__(
        self,
        preparation: Preparation,
        deployments: Deployments,
        device: Registers,
        registry: Registry,
        say: Say,
    ) -> None:
        self._preparation = preparation
        self._deployments = deployments
        self._device = device
        self._registry = registry
        self._say = say

    async def run(self, progress: Progress) -> list[Model]:
        """Bring everything up; the models that serve.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        opened = [o for draft in self._drafts() if (o := await self._open(draft)) is not None]
        ready = await self._profile(opened, progress)
        failures = await self._deployments.try_bring_up(ready)
        await self._deployments.settled(_SETTLE_S)
        serving: list[Model] = []
        for one in ready:
            model = one.model
            if model.key in failures:
                self._broken(model.name, str(model.version), failures[model.key])
                continue
            entry = Entry(model.name, str(model.version), State.READY, model=model)
            self._registry.put(entry)
            serving.append(model)
        return serving

    def _drafts(self) -> list[Draft]:
        drafts: list[Draft] = []
        for found in self._preparation.found():
            if found.error is not None:
                self._broken(found.name, "", found.error)
            for version in found.versions:
                try:
                    drafts.append(self._preparation.draft(found.name, version))
                except RepositoryError as error:
                    self._broken(found.name, str(version), str(error))
        return drafts

    async def _open(self, draft: Draft) -> _Opened | None:
        self._registry.put(Entry(draft.name, str(draft.version), State.LOADING))
        for note in draft.notes:
            self._say(f"{draft.name}: {note}")
        try:
            model = await self._preparation.open(draft, generation=0)
        except (RepositoryError, ServeError) as error:
            self._broken(draft.name, str(draft.version), str(error))
            return None
        self._device.register(model)
        return _Opened(draft, model)

    async def _profile(self, opened: list[_Opened], progress: Progress) -> list[Prepared]:
        filled = await self._preparation.profiles([one.model for one in opened], progress)
        for one in opened:
            detail = filled.failures.get(one.model.key)
            if detail is not None:
                self._broken(one.model.name, str(one.model.version), detail)
                self._device.forget(one.model.key)
        return [
            prepared(one.draft, one.model, filled.profiles[one.model.key])
            for one in opened
            if one.model.key in filled.profiles
        ]

    def _broken(self, name: str, version: str, detail: str) -> None:
        self._registry.put(Entry(name, version, State.UNAVAILABLE, detail))
        self._say(f"{name} is not served: {detail}")
