"""Follows a repository: loads models that come or change, unloads those that go."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from interlace.control.lifecycle import ModelLifecycle
from interlace.control.model_preparer import ModelPreparer, failure_text
from interlace.control.registry import VersionRegistry
from interlace.core.errors import RepositoryError, ServeError
from interlace.repository.draft import Draft

_LOG: Final = logging.getLogger(__name__)
#: Files that changed must stay as they are for so long: somebody may be copying them.
_SETTLE_S: Final = 1.0

#: What the files of a model say, for each version; or why they say nothing.
_Files = tuple[tuple[object, ...], ...] | str


@dataclass(slots=True)
class RepositoryPoll:
    """Compares the contents of all model folders with those at the look before.

    A model that does not load stays as it was until its files, or those of another, change again.
    """

    _preparation: ModelPreparer
    _lifecycle: ModelLifecycle
    _registry: VersionRegistry
    _period_s: float  #: 0: never
    _known: dict[str, _Files] | None = None  #: what was read last
    _failed: set[str] = field(default_factory=set)  #: those that did not load
    _told: str = ""

    async def run(self) -> None:
        """Look until cancelled."""
        while self._period_s:
            try:
                await self._follow()
                self._told = ""
            except Exception as error:  # whatever fails, it looks again
                why = failure_text(error)
                if why != self._told:
                    _LOG.error("what is served stays: %s", why)
                self._told = why
            await asyncio.sleep(self._period_s)

    async def _follow(self) -> None:
        now = await self._look()
        changed = {name for name, files in now.items() if self._is_new(name, files)}
        if changed:
            await asyncio.sleep(_SETTLE_S)
            later = await self._look()
            changed = {name for name in changed if later.get(name) == now[name]}
        if self._known is None:
            self._known = {name: now[name] for name in now if not self._is_new(name, now[name])}
        gone = self._known.keys() - now.keys()
        self._known |= {name: now[name] for name in changed}
        again = self._failed & now.keys() if changed or gone else set()  # ensembles, say
        for name in sorted(changed | again):
            await self._load(name)
        for name in sorted(gone):
            del self._known[name]
            await self._lifecycle.unload(name)
            _LOG.info("%s is unloaded: its folder is gone", name)

    async def _look(self) -> dict[str, _Files]:
        await self._preparation.look_again()
        names = await self._preparation.names()
        if self._known and not names:  # a file system that is not mounted looks so
            root = str(self._preparation.root)
            raise RepositoryError(root, "no model any more", "at least one, or a stopped server")
        return {name: await self._files(name) for name in names}

    async def _files(self, name: str) -> _Files:
        try:
            found = await self._preparation.found(name)
            if found is None or found.error is not None:
                return (found and found.error) or "no folder"
            return tuple([_said(await self._preparation.draft(name, v)) for v in found.versions])
        except RepositoryError as error:
            return str(error)

    def _is_new(self, name: str, files: _Files) -> bool:
        """Whether it is to be loaded; at the first look, what the start did not find."""
        if self._known is not None:
            return files != self._known.get(name)
        if isinstance(files, str):
            return False
        served = {(one.version, one.digest) for one in self._registry.serving(name)}
        return served != {one[:2] for one in files}

    async def _load(self, name: str) -> None:
        try:
            await self._lifecycle.load(name)
            self._failed.discard(name)
            _LOG.info("%s is loaded: its files are new, or changed", name)
        except ServeError as error:
            self._failed.add(name)
            _LOG.error("%s stays as it was: %s", name, error)


def _said(draft: Draft) -> tuple[object, ...]:
    """What matters of a version, wherever its files lie: those of a URL are fetched anew."""
    settings = replace(draft.settings, source="", lines={})
    config = draft.config.values
    return draft.version, draft.digest, config, settings, draft.terms, draft.labels
