"""A device under test, with models opened and inputs laid out; this machine's cores if not said."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.assembly.machine import memory_bytes
from interlace.control.model_preparer import ModelPreparer
from interlace.core.model import Model, TrustedModels
from interlace.core.profile import Profile
from interlace.core.request import Request
from interlace.core.tensor import Tensor
from interlace.device.base import Device
from interlace.device.cpu.device import CpuDevice
from interlace.device.cpu.settings import CpuSettings
from interlace.formats.arrays import NUMPY_TYPES
from interlace.profiling.profiler import profile_all
from interlace.profiling.rig import Rig
from interlace.profiling.samples import SampleInputs
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import SweepSettings
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


class Ground(NamedTuple):
    """What a device is made of here: the loop that owns it, the arenas it reads, the arena where
    requests will lie, and a folder for what it keeps."""

    loop: asyncio.AbstractEventLoop
    arenas: ArenaMap
    requests: Arena
    folder: Path


MakeDevice = Callable[[Ground], Device]


def cores(ground: Ground, count: int = 2) -> CpuDevice:
    """Some of this machine's cores; workers share the weights of a model."""
    some = tuple(sorted(os.sched_getaffinity(0)))[:count]
    settings = CpuSettings(some, memory_bytes(), str(ground.folder))
    return CpuDevice(ground.loop, ground.arenas, settings)


class Stand:
    """A device with its clock, arena and models; an async context.

    Models are opened by processes on cores, whatever the device is, but for those that are
    ``known``, by name, from the same files.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        make: MakeDevice = cores,
        known: Mapping[str, Model] = MappingProxyType({}),
    ) -> None:
        self._root, self._names, self._known = root, names, known
        self._folder = TemporaryDirectory(prefix="interlace-stand-")
        loop = asyncio.get_running_loop()
        self.clock = WallClock(loop)
        self.arena = Arena.create(_ARENA_BYTES)
        self._arenas = ArenaMap(os.getpid())
        self._arenas.add(self.arena)
        ground = Ground(loop, self._arenas, self.arena, Path(self._folder.name))
        self.device = make(ground)
        self._opener = self.device if isinstance(self.device, CpuDevice) else cores(ground, count=8)
        self.rig = Rig(self.device, self.clock, self.arena)
        self.opened: dict[str, Opened] = {}
        self.late_ms = 0.0  #: p99 of how late requests of the last run were sent

    async def __aenter__(self) -> Stand:
        for model in await self._models():
            self.device.register(model)
            inputs = SampleInputs(model, self.arena).batch(0, model.signature.max_batch)
            self.opened[model.key] = Opened(model, tuple(one.inputs for one in inputs.requests))
        if self._opener is not self.device:
            self._opener.close()
        return self

    async def _models(self) -> list[Model]:
        store = ProfileStore(Path(self._folder.name))
        preparation = ModelPreparer(
            self._root, self._opener.describe, self.rig, store, TrustedModels(everyone=True)
        )

        async def model(name: str) -> Model:
            draft = await preparation.draft(name, 1)
            known, files = self._known.get(name), draft.provisional()
            if known is not None and known.digest == files.digest:
                return replace(known, path=files.path, terms=files.terms)
            return await preparation.open(draft, 0)

        return await asyncio.gather(*(model(name) for name in self._names))

    def values(self, tensor: Tensor) -> NDArray[Any]:
        """What a tensor of numbers holds now, in its shape."""
        data = bytes(self._arenas.view(tensor.span))
        return np.frombuffer(data, NUMPY_TYPES[tensor.datatype]).reshape(tensor.shape)

    def models(self) -> list[Model]:
        """The models, as they were found."""
        return [one.model for one in self.opened.values()]

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
        self._folder.cleanup()

    async def profiles(self, settings: SweepSettings) -> Mapping[str, Profile]:
        """Every model measured now, one batch at a time on an otherwise idle device."""
        models = [one.model for one in self.opened.values()]
        found: dict[str, Profile] = {}
        async for measured in profile_all(self.rig, models, settings):
            if measured.profile is None:
                raise RuntimeError(f"{measured.model.name}: {measured.error}")
            found[measured.model.key] = measured.profile
        return found


_MODEL: Final = """
import torch

INPUTS = {{"x": ("FP32", ({width},))}}
OUTPUTS = {{"y": ("FP32", ({width},))}}


def create_model():
    torch.manual_seed(0)
    layers = []
    for _ in range({layers}):
        layers += [torch.nn.Linear({width}, {width})]
    return torch.nn.Sequential(*layers)
"""


def network(width: int, layers: int) -> str:
    """The ``model.py`` of that many layers of width x width weights."""
    return _MODEL.format(width=width, layers=layers)


def write_network(root: Path, source: str, terms: str, name: str = "network") -> None:
    """A model of that source under ``root``; ``terms`` are the lines of its ``interlace.toml``."""
    folder = root / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(source)
    (folder / "interlace.toml").write_text(terms)
