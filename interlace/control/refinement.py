"""Measures again, while nothing is asked of the server, what was measured in haste."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from interlace.control.model_preparer import ModelPreparer, failure_text
from interlace.control.registry import VersionRegistry
from interlace.core.messages import ProfileMeasured
from interlace.core.model import Model
from interlace.core.tables import counted
from interlace.perf.cold_start import as_allowed

_log = logging.getLogger(__name__)

#: How often a look is taken whether the server is idle.
_LOOK_S: Final = 1.0


class ProfileRefinement:
    """Measures models one after the other while the server is ``idle``, then plans with the result.

    Once a request arrives, the model under way is given up until the server is idle again. Workers
    that measure yield their cores to those that serve.
    """

    def __init__(
        self,
        preparation: ModelPreparer,
        registry: VersionRegistry,
        deliver: Callable[[ProfileMeasured], None],
        idle: Callable[[], bool],
    ) -> None:
        self._preparation = preparation
        self._registry = registry
        self._deliver = deliver
        self._idle = idle

    async def run(self) -> None:
        """Look for such models until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            hasty = list(self._preparation.hasty.values())
            if hasty and self._idle():
                _log.info("measuring %s again while nothing is asked", counted(len(hasty), "model"))
                found = [one async for one in self._measured_again(hasty)]
                for one in found:
                    self._deliver(one)
                if found:
                    _log.info("planned with new profiles of %s", counted(len(found), "model"))

    async def _measured_again(self, hasty: Sequence[Model]) -> AsyncIterator[ProfileMeasured]:
        for model in hasty:
            if not self._idle():
                return
            if one := await self._measured(model):
                yield one

    async def _measured(self, model: Model) -> ProfileMeasured | None:
        entry = self._registry.by_key(model.key)
        if entry is None or entry.model is None:  # it is served no more
            self._preparation.hasty.pop(model.key, None)
            return None
        try:
            profile = await self._preparation.measure_again(model, self._idle)
            if profile is not None:
                return ProfileMeasured(model.key, as_allowed(profile, model.terms))
        except Exception as error:
            self._preparation.hasty.pop(model.key, None)
            _log.warning("%s is not measured again: %s", model.name, failure_text(error))
        return None
