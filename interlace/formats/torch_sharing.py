"""Param-Share for torch: a module's weights swapped for views of a file that all workers map."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.formats.cold_weights import ColdWeights, weight_uses
from interlace.formats.machine import machine_key, release_free_memory
from interlace.formats.runner import WARM_RUNS, WeightUse
from interlace.formats.weights_file import (
    WeightsFile,
    header_of,
    is_undamaged,
    storable,
    write_weights,
)
from interlace.formats.weights_folder import publish, tell_damaged

#: To be raised when modules are prepared in another way, so that old files are not looked at.
_REVISION: Final = "5"


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """What a model's weights weigh in this process, and those that lie in a shared file."""

    total_bytes: int
    cold: ColdWeights | None = None
    warnings: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        return 0 if self.cold is None else sum(self.cold.file.weights_bytes)


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
    tensors: Mapping[str, torch.Tensor],
    model: Model,
    weights_dir: str | None,
    run: Callable[[], object],
    architecture: Callable[[], str] = str,
) -> SharedWeights:
    """Point ``tensors`` at the shared file of this model, which the first caller writes.

    The file has them in the order in which ``run``, an execution, reads them; tensors that it
    writes to stay private to each process. ``architecture`` is stored if all weights can be swapped
    and execution does not change it. The private copies are dropped. The file is named after the
    model's digest, the machine and the torch version. It is written as a draft and then linked into
    place: no process maps half a file, and all map the same one. If that fails (a full or read-only
    folder, a file of another model), the weights stay private and ``warnings`` has the reason. A
    damaged or incomplete file is written anew.
    """
    total = sum(tensor.nbytes for tensor in tensors.values())
    if weights_dir is None or not total:
        return SharedWeights(total)
    path = _path_of(model, weights_dir)
    try:
        if not _is_whole(path):
            path.unlink(missing_ok=True)
            publish(path, lambda draft: _write(draft, tensors, run, architecture))
        file = WeightsFile(path)
        _check(file, path, tensors)
    except (OSError, ValueError, KeyError) as error:
        return SharedWeights(
            total, None, (f"weights of {model.name} are private, not shared: {error}",)
        )
    cold = ColdWeights(file, tensors)
    release_free_memory()
    return SharedWeights(total, cold)


def weights_of_another(model: Model, weights_dir: str, first: ColdWeights) -> SharedWeights:
    """The weights of a model of the architecture of one that is open: nothing is opened.

    Raises:
        OSError, ValueError: its file cannot be read, or is damaged.
    """
    path = _path_of(model, weights_dir)
    if not is_undamaged(path):
        raise ValueError(f"{path}: it is damaged")
    file = WeightsFile(path, first.file.layout)
    return SharedWeights(sum(file.weights_bytes), first.of_another(file))


def shared_architecture(model: Model, weights_dir: str | None) -> str:
    """What models have in common that can take turns with one open module; empty if unknown.

    It says where weights lie in their files as well, and what inputs are called. Only the file's
    head is read: it is to be opened by the first of them all the same.
    """
    if weights_dir is None:
        return ""
    try:
        size, head = header_of(_path_of(model, weights_dir))
    except OSError:
        return ""
    told = (size, model.format.value, model.signature.inputs, model.signature.batched)
    return hashlib.sha256(head + repr(told).encode()).hexdigest()


def _path_of(model: Model, weights_dir: str) -> Path:
    key = machine_key(torch.__version__, _REVISION)
    return Path(weights_dir) / f"{model.digest}-{key}.safetensors"


def _write(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    run: Callable[[], object],
    architecture: Callable[[], str],
) -> None:
    opened_as = architecture()
    shareable = {name: tensor for name, tensor in tensors.items() if storable(tensor)}
    before = {name: _version(tensor) for name, tensor in shareable.items()}
    uses: tuple[WeightUse, ...] = ()
    # Sample inputs may be nonsense to the model, which its trial will say: any order does then.
    with torch.inference_mode(), suppress(Exception):
        for _ in range(WARM_RUNS):  # the first ones may read weights to optimise what follows
            run()
        uses = weight_uses(shareable, run)
    written = {name for name, one in shareable.items() if _version(one) != before[name]}
    kept = [
        WeightUse(use.operator, names)
        for use in uses or [WeightUse("", tuple(shareable))]
        if (names := tuple(name for name in use.weights if name not in written))
    ]
    whole = bool(uses) and len(shareable) == len(tensors) and not written
    told = opened_as if whole and architecture() == opened_as else ""
    write_weights(path, shareable, kept, told)


def _version(tensor: torch.Tensor) -> int:
    version: int = 0 if tensor.is_inference() else tensor._version
    return version


def _is_whole(path: Path) -> bool:
    try:
        if is_undamaged(path):
            WeightsFile(path)
            return True
    except FileNotFoundError:
        return False
    except (ValueError, RepositoryError):
        pass
    tell_damaged(path)
    return False


def _check(file: WeightsFile, path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    for index in range(len(file.uses)):
        for name, tensor in file.tensors(index).items():
            own = tensors.get(name)
            if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
                raise ValueError(f"{path}: tensor {name} is not the model's")
