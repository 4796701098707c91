"""Torch models for tests of the CUDA device, by name, as ``open_torch`` would open them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.device.cuda.driver.api import CudaError
from interlace.formats import open_torch
from interlace.formats.opened import DeclaredSignature, OpenedModel
from tests.device.cuda.backends import note
from tests.device.cuda.fake.handles import convolution
from tests.device.models import SLOW_S

OPENER = "tests.device.cuda.torch_models:open_fake"
#: Real inputs of tests hold such a value; made-up ones (warm-up, capture) do not.
REAL = 1e3
WEIGHT_FLOATS = 1 << 20

Values = Mapping[str, torch.Tensor]


def open_fake(model: Model) -> OpenedModel:
    """Raises RepositoryError for the model named ``broken``."""
    name = model.name
    if name == "broken":
        raise RepositoryError("model.bin", "nonsense", "a model")
    if name == "late":
        time.sleep(0.7)
    if name.startswith("layered"):
        return _layered()
    weight = torch.full((WEIGHT_FLOATS if name == "heavy" else 1,), 2.0)
    tensors = {"weight": weight}

    def call(values: Values) -> Any:
        x = values["x"]
        _BEHAVIOURS.get(name, _nothing)(x)
        return {"y": x * tensors["weight"][0]}

    return OpenedModel(call, tensors, DeclaredSignature("fake"))


def _layered() -> OpenedModel:
    """Three layers with weights and one without; each doubles."""
    net = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(3)])
    net.insert(1, torch.nn.ReLU())
    tensors = dict(net.requires_grad_(False).named_parameters())
    for one in tensors.values():
        one.copy_(2.0 * torch.eye(4))
    return OpenedModel(lambda values: {"y": net(values["x"])}, tensors, DeclaredSignature("fake"))


def open_noted(model: Model) -> OpenedModel:
    """``open_fake``, with a line in the notes; a model that has files is opened as ever."""
    note(f"open {model.name}")
    return open_torch(model) if model.path else open_fake(model)


def _nothing(x: torch.Tensor) -> None:
    pass


def _real(x: torch.Tensor) -> bool:
    return float(x.max()) >= REAL


def _slow(x: torch.Tensor) -> None:
    if _real(x):
        time.sleep(SLOW_S)


def _sticky(x: torch.Tensor) -> None:
    if _real(x):
        raise CudaError("kernel", "CUDA_ERROR_ILLEGAL_ADDRESS", "poisoned")


def _convolve(x: torch.Tensor) -> None:
    convolution()


_BEHAVIOURS: dict[str, Callable[[torch.Tensor], None]] = {
    "convolution": _convolve,
    "slow": _slow,
    "sticky": _sticky,
}
