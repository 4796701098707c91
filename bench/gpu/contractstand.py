"""A stand for the contract on a real GPU, and the two models that its tests ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from interlace.core.messages import Finished, Lost, Work
from interlace.core.model import Model
from interlace.device.base import Device
from interlace.device.cuda.discovery import Found
from interlace.device.cuda.green import green_settings
from interlace.device.cuda.mps import MpsControl, mps_settings
from interlace.device.cuda.settings import CudaSettings
from interlace.device.cuda.streams import streams_settings
from interlace.device.formats.opened import Opened
from interlace.device.formats.trial import Spoken
from tests.device.cuda.rig import CudaStand, cuda_rig
from tests.device.models import SLOW_S

_OPENER: Final = "bench.gpu.contractstand:open_on_gpu"
#: Clock cycles of an H100 or H200 in a second, about: what the slow model sleeps is not exact.
_CYCLES_HZ: Final = 1.8e9

Values = Mapping[str, Any]


class _Running(MpsControl):
    """A daemon that somebody else started and stops."""

    def __init__(self, uuid: str, environment: Mapping[str, str]) -> None:
        super().__init__(uuid)
        self._given = environment

    def environment(self) -> Mapping[str, str]:
        return self._given

    def stop(self) -> None:
        return


class GpuStand(CudaStand):
    """The stand of the fake driver's tests, with the GPU's own backend and completion."""

    def __init__(self, kind: str, found: Found, environment: Mapping[str, str]) -> None:
        chosen = _settings(kind, found, environment)
        self._rig = cuda_rig(
            kind,
            gpu=chosen.gpu,
            uuid=chosen.uuid,
            backend=chosen.backend,
            environment=chosen.environment,
            opener=_OPENER,
            completion="",
        )
        self.device: Device = self._rig.device
        self.finished: list[Finished] = self._rig.finished
        self.lost: list[Lost] = self._rig.lost
        self.do: Callable[[Work], None] = self._rig.do
        self.wait, self.close = self._rig.wait, self._rig.close


def _settings(kind: str, found: Found, environment: Mapping[str, str]) -> CudaSettings:
    match kind:
        case "green":
            return green_settings(found, "gpu0")
        case "streams":
            return streams_settings(found, "gpu0")
        case _:
            return mps_settings(found, "gpu0", _Running(found.uuid, environment))


def open_on_gpu(model: Model) -> Opened:
    """Twice the input; the model named ``slow`` sleeps on the GPU before, in its graph too."""
    slow = model.name == "slow"
    tensors = {"weight": torch.full((1,), 2.0)}

    def call(values: Values) -> Any:
        if slow:
            torch.cuda._sleep(int(SLOW_S * _CYCLES_HZ))
        return {"y": values["x"] * tensors["weight"][0]}

    return Opened(call, tensors, Spoken("contract"))
