"""Measures again, while nothing is asked of the server, what was measured in haste."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.control.model_preparer import ModelPreparer, failure_text
from interlace.control.registry import VersionRegistry
from interlace.core.messages import ProfileMeasured
from interlace.core.model import Model
from interlace.core.tables import counted
from interlace.device.base import Registers
from interlace.perf.cold_start import as_allowed

_log = logging.getLogger(__name__)

#: How often a look is taken whether the server is idle.
_LOOK_S: Final = 1.0
#: How long it must have been idle to begin, at first, and at most: twice as long after each
#: interruption, so that requests which come now and then are not measured beside for ever.
_IDLE_S, _IDLE_MOST_S = 1.0, 120.0


@dataclass(slots=True)
class ProfileRefinement:
    """Measures models one after the other while the server is idle, then plans with the result.

    Once a request arrives, the model under way is given up until the server is idle again. Workers
    that measure yield their cores to those that serve.
    """

    _preparation: ModelPreparer
    _registry: VersionRegistry
    _device: Registers
    _load: Callable[[str], Awaitable[None]]  #: of names not served by their first profile
    _deliver: Callable[[ProfileMeasured], None]
    _idle_s: Callable[[], float]  #: for how long nothing has been asked of the server
    _patience_s: float = _IDLE_S
    _told: int = 0  #: how many models it was said of that they are measured again

    async def run(self) -> None:
        """Look for such models until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            hasty = list(self._preparation.hasty.values())
            if hasty and self._idle_s() >= self._patience_s:
                await self._measure_again(hasty)

    async def _measure_again(self, hasty: Sequence[Model]) -> None:
        if len(hasty) > self._told:
            text = "%s will be measured again, more thoroughly, while nothing is asked"
            _log.info(text, counted(len(hasty), "model"))
        found = [one async for one in self._measured(hasty)]
        for one in found:
            self._deliver(one)
        if found:
            _log.info("planned with new profiles of %s", counted(len(found), "model"))
        if self._idle():
            self._patience_s = _IDLE_S
        else:
            self._patience_s = min(2.0 * self._patience_s, _IDLE_MOST_S)
        self._told = len(self._preparation.hasty)

    def _idle(self) -> bool:
        return self._idle_s() >= _IDLE_S

    async def _measured(self, hasty: Sequence[Model]) -> AsyncIterator[ProfileMeasured]:
        for model in hasty:
            if not self._idle():
                return
            if one := await self._measure(model):
                yield one

    async def _measure(self, model: Model) -> ProfileMeasured | None:
        serves = self._registry.by_key(model.key) is not None
        if not serves and not self._registry.why_failed(model.name):  # unloaded, or reloaded
            self._preparation.hasty.pop(model.key, None)
            return None
        try:
            if not serves:
                self._device.register(model)
            profile = await self._preparation.measure_again(model, self._idle)
            if profile is not None and serves:
                return ProfileMeasured(model.key, as_allowed(profile, model.terms))
            if profile is not None:  # the first one may have been why it had no place
                await self._load(model.name)
                _log.info("%s is served, too", model.name)
        except Exception as error:
            self._preparation.hasty.pop(model.key, None)
            _log.warning("%s: %s", model.name, failure_text(error))
        finally:
            if not serves:
                self._device.forget(model.key)
        return None
