"""A stand for the contract on a real GPU, and the two models that its tests ask for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from bench.gpu.preflight.mps_client import client_sms
from bench.gpu.switches import USUAL, Switches
from interlace.core.model import Model
from interlace.device.cuda.discovery import DiscoveredGpu
from interlace.device.cuda.green_contexts.atoms import Atoms, green_settings
from interlace.device.cuda.mps import MpsControl, mps_settings
from interlace.device.cuda.settings import CudaSettings
from interlace.device.cuda.streams import streams_settings
from interlace.formats.opened import DeclaredSignature, OpenedModel
from tests.device.cuda.backends import clients_sms
from tests.device.cuda.rig import CudaStand
from tests.device.models import SLOW_S

_OWN: Final = ("HOME", "PYTHONUSERBASE", "TMPDIR")
_OPENER: Final = "tests.bench.gpu_stand:open_on_gpu"
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
    """The stand of the fake driver's tests, with the GPU's own backend; ``fake``
    leaves it those of the tests."""

    def __init__(
        self,
        kind: str,
        found: DiscoveredGpu,
        environment: Mapping[str, str],
        switches: Switches = USUAL,
        fake: bool = False,
    ) -> None:
        chosen = _settings(kind, found, environment, switches.atoms)
        self._environment = {**environment, "CUDA_VISIBLE_DEVICES": found.uuid}
        self._fake = fake
        own: dict[str, object] = {
            "backend": chosen.backend,
            "opener": _OPENER,
            "handle_context": switches.handle_context,
        }
        gpu = replace(chosen.gpu, shares_pct=few(chosen.gpu.shares_pct))
        super().__init__(
            kind,
            gpu=gpu,
            uuid=chosen.uuid,
            environment=lambda share_pct: {**here(), **chosen.environment(share_pct)},
            **({} if fake else own),
        )

    def units(self, share_pct: int) -> int:
        """SMs: whole atoms, what a client of MPS says it has, or all."""
        gpu = self.device.gpu
        match self._mechanism:
            case "green":
                return gpu.units if share_pct == 100 else gpu.taken(share_pct) * gpu.blocks[1]
            case "mps" if not self._fake:
                return client_sms(self._environment, share_pct)
            case "mps":
                return clients_sms(share_pct)
        return gpu.units


def here() -> dict[str, str]:
    """What this process was given to keep files in; those that are forked for it were not."""
    return {name: os.environ[name] for name in _OWN if name in os.environ}


def few(shares_pct: Sequence[int]) -> tuple[int, ...]:
    """The smallest, one in the middle, all: each costs a process or a context of its own."""
    return tuple(sorted({shares_pct[0], shares_pct[len(shares_pct) // 2], shares_pct[-1]}))


def _settings(
    kind: str, found: DiscoveredGpu, environment: Mapping[str, str], atoms: Atoms | None
) -> CudaSettings:
    match kind:
        case "green":
            return green_settings(found, "gpu0", atoms=atoms)
        case "streams":
            return streams_settings(found, "gpu0")
        case _:
            return mps_settings(found, "gpu0", _Running(found.uuid, environment))


def open_on_gpu(model: Model) -> OpenedModel:
    """Twice the input; the model named ``slow`` sleeps on the GPU before, in its graph too."""
    slow = model.name == "slow"
    tensors = {"weight": torch.full((1,), 2.0)}

    def call(values: Values) -> Any:
        if slow:
            torch.cuda._sleep(int(SLOW_S * _CYCLES_HZ))
        return {"y": values["x"] * tensors["weight"][0]}

    return OpenedModel(call, tensors, DeclaredSignature("contract"))
