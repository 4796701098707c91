"""Param-Share for torch: a module's weights swapped for views of a file that all workers map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from interlace.core.model import Model
from interlace.formats.machine import machine_key
from interlace.formats.memory import release_free_memory
from interlace.formats.tensor_file import map_tensors, storable, write_tensors
from interlace.formats.weights_folder import publish

#: To be raised when modules are prepared in another way, so that old files are not looked at.
_REVISION: Final = "1"


@dataclass(frozen=True, slots=True)
class WeightsFootprint:
    """What a model's weights weigh in this process, and how much of it is shared."""

    total_bytes: int
    shared_bytes: int = 0
    warnings: tuple[str, ...] = ()


def module_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and plain tensor attributes of a module, by qualified name."""
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters())
    tensors |= dict(module.named_buffers())
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{name}" if prefix else name] = value
    return tensors


def share_weights(
    tensors: Mapping[str, torch.Tensor], model: Model, weights_dir: str | None
) -> WeightsFootprint:
    """Point ``tensors`` at the shared file of this model, which the first caller writes.

    The private copies are dropped. The file is named after the model's digest, the machine and
    the torch version; it is written beside and linked into place, so that nobody ever sees half of
    it and everybody maps the same one. If that fails (a full or read-only folder, a file that is
    not this model's), the weights stay private and the reason is in ``warnings``.
    """
    total = sum(tensor.nbytes for tensor in tensors.values())
    if weights_dir is None:
        return WeightsFootprint(total)
    shareable = {name: tensor for name, tensor in tensors.items() if storable(tensor)}
    path = (
        Path(weights_dir)
        / f"{model.digest}-{machine_key(torch.__version__, _REVISION)}.safetensors"
    )
    try:
        if not path.exists():
            publish(path, lambda draft: write_tensors(draft, shareable))
        shared = _adopt(path, shareable)
    except (OSError, ValueError, KeyError) as error:
        return WeightsFootprint(
            total, 0, (f"weights of {model.name} are private, not shared: {error}",)
        )
    release_free_memory()
    return WeightsFootprint(total, shared)


def _adopt(path: Path, tensors: Mapping[str, torch.Tensor]) -> int:
    mapped = map_tensors(path)
    if mapped.keys() != tensors.keys():
        raise ValueError(f"{path} holds other tensors than the model")
    for name, tensor in tensors.items():
        if mapped[name].shape != tensor.shape or mapped[name].dtype != tensor.dtype:
            raise ValueError(f"{path}: tensor {name} is not the model's")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.data = mapped[name]
    return sum(tensor.nbytes for tensor in tensors.values())
