"""This machine's cores as a device under test, with models opened and inputs laid out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from interlace.cli.machine import memory_bytes
from interlace.control.preparation import Preparation
from interlace.core.model import Model
from interlace.core.profile import Profile
from interlace.core.request import Request
from interlace.core.tensor import Tensor
from interlace.device.cpu import CpuDevice
from interlace.device.settings import CpuSettings
from interlace.measure.profiler import profile_all
from interlace.measure.requests import SampleInputs
from interlace.measure.rig import Rig
from interlace.measure.store import ProfileStore
from interlace.measure.sweep import Settings
from interlace.runtime.clock import WallClock
from interlace.shm.arena import Arena, ArenaMap

_ARENA_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that the device knows, and inputs of one-row requests of it."""

    model: Model
    inputs: tuple[tuple[Tensor, ...], ...]

    def request(self, number: int, arrived_ms: float, slo_ms: float) -> Request:
        """A request of one row."""
        inputs = self.inputs[number % len(self.inputs)]
        deadline_ms = arrived_ms + slo_ms
        return Request(number, self.model.key, arrived_ms, deadline_ms, inputs=inputs)


class Stand:
    """A CPU device with its clock, arena and models; an async context.

    Workers share the weights of a model unless they are to have their own.
    """

    def __init__(self, root: Path, names: Sequence[str], share_weights: bool = True) -> None:
        self._root, self._names = root, names
        self._weights = TemporaryDirectory(prefix="interlace-fidelity-")
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop)
        self.arena = Arena.create(_ARENA_BYTES)
        self._arenas = ArenaMap(os.getpid())
        self._arenas.add(self.arena)
        cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
        weights = self._weights.name if share_weights else None
        settings = CpuSettings(cores, memory_bytes(), weights)
        self.device = CpuDevice(loop, self._arenas, settings)
        self.rig = Rig(self.device, self.clock, self.arena)
        self.opened: dict[str, Opened] = {}

    async def __aenter__(self) -> Stand:
        store = ProfileStore(Path(self._weights.name), print)
        preparation = Preparation(self._root, self.device, self.rig, store)
        for name in self._names:
            model = await preparation.open(preparation.draft(name, 1), generation=0)
            self.device.register(model)
            inputs = SampleInputs(model, self.arena).batch(0, model.signature.max_batch)
            self.opened[model.key] = Opened(model, tuple(one.inputs for one in inputs.requests))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.rig.close()
        self.device.close()
        self._arenas.close()
        self.arena.close()
        self._weights.cleanup()

    async def profiles(self, settings: Settings) -> Mapping[str, Profile]:
        """Every model measured now, one batch at a time on an otherwise idle device."""
        models = [one.model for one in self.opened.values()]
        found: dict[str, Profile] = {}
        async for measured in profile_all(self.rig, models, settings):
            if measured.profile is None:
                raise RuntimeError(f"{measured.model.name}: {measured.error}")
            found[measured.model.key] = measured.profile
        return found
