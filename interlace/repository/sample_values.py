"""Sample values of a model's inputs: from ``[sample]``, or from the data of ``model_warmup``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from interlace.core.errors import RepositoryError
from interlace.core.model import SampleValue
from interlace.repository.files import open_regular
from interlace.repository.model_config import ModelConfig
from interlace.repository.model_settings import ModelSettings

_TEXT_CHARS: Final = 16_384  #: values travel in frames between processes
_FILE_BYTES: Final = 256 << 20


def given_values(folder: Path, settings: ModelSettings) -> dict[str, SampleValue]:
    """The values that ``[sample]`` gives.

    Raises:
        RepositoryError: a value or file that cannot be read.
    """
    found = {}
    for name, table in settings.values.items():
        where = settings.where(f"sample.{name}")
        if list(table) == ["value"]:
            found[name] = _literal(table["value"], where)
        elif list(table) == ["file"] and isinstance(table["file"], str):
            found[name] = _in_file(folder, table["file"], name, where)
        else:
            raise RepositoryError(
                where, f"keys {', '.join(table)}", '{ value = ... } or { file = "..." }'
            )
    return found


def warmup_values(folder: Path, config: ModelConfig) -> dict[str, SampleValue]:
    """The values of the first sample of ``model_warmup``; random ones are made up as others are.

    Raises:
        RepositoryError: a file that cannot be read.
    """
    samples = config.values.get("model_warmup", ())
    if not samples:
        return {}
    found = {}
    for name, given in samples[0].get("inputs", {}).items():
        shape = tuple(given.get("dims", ()))
        file = given.get("input_data_file", "")
        if file:
            where = config.where("model_warmup")
            read = _in_file(folder, f"warmup/{file}", name, where)
            found[name] = SampleValue(file=read.file, shape=shape, stamp=read.stamp)
        elif given.get("zero_data"):
            found[name] = SampleValue(shape=shape)
    return found


def _literal(value: Any, where: str) -> SampleValue:
    try:
        text = json.dumps(value)
        shape = np.asarray(value).shape
    except (TypeError, ValueError) as error:
        raise RepositoryError(where, f"no value ({error})", "numbers or texts in lists") from error
    if len(text) > _TEXT_CHARS:
        raise RepositoryError(where, f"{len(text)} characters", 'a file: { file = "x.npy" }')
    return SampleValue(text, shape=shape)


def _in_file(folder: Path, name: str, tensor: str, where: str) -> SampleValue:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise RepositoryError(where, f"'{name}'", "a file in the model's own folder")
    file = folder.absolute() / path
    try:
        with open_regular(file):
            status = file.stat()
        if status.st_size > _FILE_BYTES:
            raise RepositoryError(where, f"{status.st_size} bytes", f"at most {_FILE_BYTES}")
        shape = _shape(file, tensor)
    except (OSError, ValueError, KeyError, EOFError) as error:
        found = f"{file} ({error})"
        raise RepositoryError(where, found, f"an array for '{tensor}'") from error
    stamp = f"{status.st_size} {status.st_mtime_ns}"
    return SampleValue(file=str(file), shape=shape, stamp=stamp)


def _shape(file: Path, tensor: str) -> tuple[int, ...]:
    """The shape of a NumPy file's array; of other files it is not known."""
    if file.suffix == ".npy":
        return tuple(np.load(file, mmap_mode="r", allow_pickle=False).shape)
    if file.suffix == ".npz":
        archive: Mapping[str, Any] = np.load(file, allow_pickle=False)
        return tuple(archive[tensor].shape)
    return ()
