"""TorchScript archives: ``model.pt``."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch

from interlace.core.errors import RepositoryError
from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.formats.arrays import objects, text_of
from interlace.formats.opened import DeclaredSignature, ModelCall, OpenedModel, ordered_call
from interlace.formats.torch_sharing import module_tensors

#: torch stores entries as they are; who compresses an archive gains less than this.
_MOST_TIMES: Final = 8
#: Small archives may unpack to so much all the same.
_ALWAYS_BYTES: Final = 64 << 20


def check_unpacked(path: Path) -> None:
    """Refuse what is no archive, and one that unpacks to far more than it takes on disk.

    Raises:
        RepositoryError: what was found, and how much is allowed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_bytes = sum(entry.file_size for entry in archive.infolist())
        most_bytes = max(_ALWAYS_BYTES, _MOST_TIMES * path.stat().st_size)
    except (zipfile.BadZipFile, OSError) as error:
        empty = path.is_file() and not path.stat().st_size
        found = "an empty file" if empty else str(error)
        raise RepositoryError(str(path), found, "an archive that torch wrote") from error
    if unpacked_bytes > most_bytes:
        raise RepositoryError(
            str(path),
            f"an archive that unpacks to {unpacked_bytes / 1e6:.0f} MB",
            f"{most_bytes / 1e6:.0f} MB at most: {_MOST_TIMES} times its size; save it again",
        )


def open_call(model: Model) -> OpenedModel:
    """Open a TorchScript model.

    The archive holds the arguments' names but neither shapes nor types: ``config.pbtxt`` must
    give the inputs, under the names of the arguments, as ``NAME__0``, ``NAME__1`` ..., or in
    their order. A single ``Dict[str, Tensor]`` takes all inputs by name; ``List[str]`` are
    ``BYTES`` in UTF-8.

    Raises:
        RepositoryError: the inputs are not described, or not as many as ``forward`` takes.
    """
    source = str(model.source)
    check_unpacked(Path(source))
    _check_script(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the format is the user's choice
        warnings.simplefilter("ignore", FutureWarning)
        module = torch.jit.load(source, map_location="cpu").eval()
    call = _call(module, model.signature.inputs, source)
    return OpenedModel(call, _tensors(module), DeclaredSignature(source))


def _check_script(source: str) -> None:
    with zipfile.ZipFile(source) as archive:
        files = {PurePosixPath(name).name for name in archive.namelist()}
    if "data.pkl" in files and "constants.pkl" not in files:
        raise RepositoryError(
            source,
            "a file of torch.save: weights or a pickled module, without its code",
            "TorchScript: torch.jit.script(module).save('model.pt')",
        )


def _call(module: Any, inputs: tuple[TensorSpec, ...], source: str) -> ModelCall:
    types = [str(argument.type) for argument in module.forward.schema.arguments[1:]]
    if inputs and types == ["Dict[str, Tensor]"]:
        return lambda values: _result(module(dict(values)))
    names = _order(module, inputs, source)
    call = ordered_call(module, names)
    texts = [name for name, kind in zip(names, types, strict=False) if kind == "List[str]"]

    def text_call(values: Mapping[str, Any]) -> Any:
        decoded = {
            name: text_of(name, values[name], "TorchScript") for name in texts if name in values
        }
        return _result(call({**values, **decoded}))

    return text_call


def _result(value: Any) -> Any:
    """The module's result, with lists of strings as arrays of ``BYTES``."""
    if isinstance(value, dict):
        return {key: _result(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_result(one) for one in value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return objects([one.encode() for one in value])
    return value


def _tensors(module: Any) -> dict[str, torch.Tensor]:
    tensors = module_tensors(module)
    # A frozen module has its weights among the constants of its graph.
    constants = module.code_with_constants[1].const_mapping
    return tensors | {
        f"constant.{name}": value
        for name, value in constants.items()
        if isinstance(value, torch.Tensor)
    }


def _order(module: Any, inputs: tuple[TensorSpec, ...], source: str) -> tuple[str, ...]:
    arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
    required = sum(not a.has_default_value() for a in module.forward.schema.arguments[1:])
    if not inputs:
        raise RepositoryError(
            source,
            f"forward({', '.join(arguments)}), which says neither shapes nor types",
            'a config.pbtxt beside the version folder with input [ { name: "'
            f'{arguments[0] if arguments else "x"}" data_type: TYPE_FP32 dims: [ ... ] }} ]',
        )
    names = [spec.name for spec in inputs]
    if not required <= len(names) <= len(arguments):
        raise RepositoryError(
            source,
            f"inputs {names} described",
            f"one for each argument of forward({', '.join(arguments)})",
        )
    if set(names) <= set(arguments):
        return tuple(arguments[: max(map(arguments.index, names)) + 1])
    if all(name.rpartition("__")[2].isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: int(name.rpartition("__")[2])))
    return tuple(names)
