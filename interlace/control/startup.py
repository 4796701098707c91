"""Startup: serves every model that can be served, and says of every other why not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from interlace.control.deployments import Deployments
from interlace.control.ensembles import Ensembles, member_demands, readable
from interlace.control.model_preparer import (
    ModelPreparer,
    PreparedModel,
    failure_text,
    prepared_model,
)
from interlace.control.registry import VersionEntry, VersionRegistry, VersionState
from interlace.core.errors import RepositoryError
from interlace.core.model import Format, Model
from interlace.core.tables import counted
from interlace.device.base import Registers
from interlace.profiling.store import FillResult, joined
from interlace.profiling.sweep import OnSweepStep, telling
from interlace.repository.draft import Draft

_log = logging.getLogger(__name__)

#: How long a first plan may take to stand in full before serving begins with what there is.
_SETTLE_S: Final = 60.0
#: How long nothing else may have been opened before those that still open are no longer waited for.
_PATIENCE_S: Final = 20.0
#: So many models are open before the pace at which they are is looked at, and the same for a look.
_STARTING: Final = 8
#: Folders read at a time: more would only wait for storage.
_READ_AT_ONCE: Final = 16
#: Waits for other changes of a name, and lets them wait: ``ModelLifecycle.locked``.
NameLock = Callable[[str], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Opened:
    draft: Draft
    model: Model


_Opening = asyncio.Task[_Opened | None]
#: Of one folder: what is opened of it, once it was read.
_Reading = asyncio.Task[list[_Opening]]


class _Pace:
    """How many of so many models are open, and how long the others will take at that pace.

    The first of them start processes, which import what the others find there: they tell nothing.
    """

    def __init__(self) -> None:
        self._ready, self._since_s = 0, inf

    def text(self, ready: int, total: int, now_s: float) -> str:
        """Asked each time that some have been opened."""
        if self._ready < _STARTING <= ready:
            self._ready, self._since_s = ready, now_s
        told = f"{ready} of {total} models are open"
        more = ready - self._ready
        if not self._ready or more < _STARTING:
            return told
        left_s = (now_s - self._since_s) / more * (total - ready)
        return f"{told}, about {left_s:.0f} s left"


@dataclass(slots=True)
class Startup:
    """Reads, opens, profiles and deploys a repository, all models planned together.

    Models are read and opened concurrently, and fail separately. One that takes much longer than
    the others, or hangs, is not waited for; it is deployed when it is ready.
    """

    _preparation: ModelPreparer
    _deployments: Deployments
    _device: Registers
    _registry: VersionRegistry
    _locked: NameLock
    _ensembles: Ensembles
    _patience_s: float = _PATIENCE_S
    _joined: list[Draft] = field(default_factory=list)  #: ensembles, served after their members
    _under_way: set[_Reading | _Opening | asyncio.Task[None]] = field(default_factory=set)

    async def run(self, progress: OnSweepStep) -> list[Model]:
        """Bring everything up; returns the models that serve.

        Raises:
            RepositoryError: the repository itself cannot be read.
        """
        names = await self._preparation.names()
        if not names:
            root = self._preparation.root
            _log.warning("%s holds no models: a model is a folder NAME/1/...", root)
        places = asyncio.Semaphore(_READ_AT_ONCE)
        reading = [asyncio.ensure_future(self._begin(name, places)) for name in names]
        for one in reading:
            self._noted(one)
        opened = await self._open_all(reading)
        serving = await self._bring_up_by_parts(opened, progress)
        serving += self._ensembles.serve_all(self._joined)
        async with telling(_log, lambda: "loading models in the other partitions"):
            await self._deployments.settled(_SETTLE_S)
        return serving

    async def _bring_up_by_parts(
        self, opened: Sequence[_Opened], progress: OnSweepStep
    ) -> list[Model]:
        """Serve models as soon as they have profiles; members of one ensemble are planned at once.

        So a model that is new delays no other.
        """
        left = {one.model.key: one for one in opened}
        found, serving = FillResult(), list[Model]()
        apps = [{step.model for step in app.steps} for _, app in readable(self._joined)]
        models = [one.model for one in opened]
        async for part in self._preparation.profiles_by_parts(models, progress):
            found = joined((found, part))
            known = found.profiles.keys() | found.failures.keys()
            unknown = {one.model.name for key, one in left.items() if key not in known}
            waiting = unknown.union(*(app for app in apps if app & unknown))
            some = [one for one in left.values() if one.model.name not in waiting]
            for one in some:
                del left[one.model.key]
            serving += await self._bring_up(some, found)
            if some and left:
                _log.info("%d of %d models are served already", len(serving), len(opened))
        return serving

    def close(self) -> None:
        """Stop waiting for models that are still being opened."""
        for task in tuple(self._under_way):
            task.cancel()

    async def _begin(self, name: str, places: asyncio.Semaphore) -> list[_Opening]:
        """Read a folder and begin to open what is in it, while others are read.

        So what the first of them needs is imported meanwhile.
        """
        async with places:
            drafts = await self._read(name)
        opening = [asyncio.ensure_future(self._open(draft)) for draft in drafts]
        for one in opening:
            self._noted(one)
        return opening

    def _noted(self, task: _Reading | _Opening | asyncio.Task[None]) -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _read(self, name: str) -> list[Draft]:
        drafts: list[Draft] = []
        version = ""
        self._registry.put(VersionEntry(name, "", VersionState.LOADING))
        try:
            found = await self._preparation.found(name)
            if found is None or (found.error is None and not found.versions):
                self._registry.forget(name)
            elif found.error is not None:
                self._broken(name, "", found.error)
        except RepositoryError as error:
            self._broken(name, "", str(error))
            return []
        for number in found.versions if found is not None else ():
            version = str(number)
            try:
                draft = await self._preparation.draft(name, number)
                (self._joined if draft.format is Format.ENSEMBLE else drafts).append(draft)
            except Exception as error:
                self._broken(name, version, failure_text(error))
        return drafts

    async def _open_all(self, reading: Sequence[_Reading]) -> list[_Opened]:
        """The models that could be opened, without those that take much longer than the others."""
        unread, opening = set(reading), set[_Opening]()
        total = 0
        loop, pace, text = asyncio.get_running_loop(), _Pace(), "reading the models' folders"
        async with telling(_log, lambda: text):
            while unread or opening:
                done, _ = await asyncio.wait(
                    unread | opening, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and len(opening) < total:
                    break
                for folder in [one for one in unread if one in done]:
                    unread.discard(folder)
                    opening |= (found := set(folder.result()))
                    total += len(found)
                opening -= done
                text = pace.text(total - len(opening), total + len(unread), loop.time())
        for folder in unread:
            self._noted(asyncio.ensure_future(self._read_later(folder)))
        for task in opening:
            self._noted(asyncio.ensure_future(self._later(task)))
        tasks = [one for folder in reading if folder not in unread for one in folder.result()]
        return [model for one in tasks if one.done() and (model := one.result()) is not None]

    async def _read_later(self, reading: _Reading) -> None:
        """Deploy what is in a folder that was not waited for."""
        for opening in await reading:
            await self._later(opening)

    async def _open(self, draft: Draft) -> _Opened | None:
        self._registry.put(VersionEntry(draft.name, str(draft.version), VersionState.LOADING))
        for note in draft.notes:
            _log.info("%s: %s", draft.name, note)
        try:
            model = await self._preparation.open(draft, generation=0)
            self._device.register(model)
        except Exception as error:
            self._broken(draft.name, str(draft.version), failure_text(error))
            return None
        return _Opened(draft, model)

    async def _later(self, opening: _Opening) -> None:
        """Deploy a model that was not waited for."""
        opened = await opening
        if opened is None:
            return
        model = opened.model
        async with self._locked(model.name):
            if any(one.version == model.version for one in self._registry.serving(model.name)):
                self._device.forget(model.key)  # it was loaded by hand meanwhile
                return
            filled = await self._preparation.profile_quickly(model)
            for served in await self._bring_up([opened], filled):
                _log.info("%s is served, too", served.name)
        self._ensembles.follow()

    async def _bring_up(self, opened: list[_Opened], filled: FillResult) -> list[Model]:
        ready = [one for o in opened if (one := self._prepared(o, filled)) is not None]
        asked = member_demands(self._joined, {one.model.name: one for one in ready})
        ready = [replace(one, asked=asked.get(one.model.key)) for one in ready]
        failures: Mapping[str, str] = {}
        if ready:
            async with telling(_log, lambda: f"loading {counted(len(ready), 'model')} as planned"):
                failures = await self._deployments.bring_up_all(ready)
        serving: list[Model] = []
        for one in ready:
            model = one.model
            if model.key in failures:
                self._broken(model.name, str(model.version), failures[model.key])
                continue
            entry = VersionEntry(model.name, str(model.version), VersionState.READY, model=model)
            self._registry.put(entry)
            serving.append(model)
        return serving

    def _prepared(self, one: _Opened, filled: FillResult) -> PreparedModel | None:
        model = one.model
        try:
            return prepared_model(one.draft, model, filled)
        except Exception as error:
            self._broken(model.name, str(model.version), failure_text(error))
            self._device.forget(model.key)
            return None

    def _broken(self, name: str, version: str, detail: str) -> None:
        self._registry.put(VersionEntry(name, version, VersionState.UNAVAILABLE, detail))
        _log.error("%s is not served: %s", name, detail)
