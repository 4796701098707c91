"""Sample values of a model's inputs: from ``[sample]``, or from the data of ``model_warmup``."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import numpy as np
from msgspec.structs import replace

from interlace.core.errors import RepositoryError
from interlace.core.model import SampleValue
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.formats.page_cache import open_regular
from interlace.repository.folder import leads_out
from interlace.repository.model_config import ModelConfig
from interlace.repository.model_settings import ModelSettings

_TEXT_CHARS: Final = 16_384  #: values travel in frames between processes
_FILE_BYTES: Final = 256 << 20
_RANGES: Final = {
    kind.upper(): (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
_LARGEST: Final = {"FP16": 65504.0, "FP32": float(np.finfo(np.float32).max)}


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
            found[name] = replace(read, shape=shape)
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
    if leads_out(name):
        raise RepositoryError(where, f"'{name}'", "a file in the model's own folder")
    file = folder.absolute() / name
    try:
        with open_regular(file) as opened:
            status = os.fstat(opened.fileno())
            shape, dtype, size_bytes = _array_of(opened, file.suffix, tensor, status.st_size)
    except RepositoryError:
        raise
    except Exception as error:  # of broken files NumPy and zipfile raise anything
        found = f"{file} ({error})"
        raise RepositoryError(where, found, f"an array for '{tensor}'") from error
    if size_bytes > _FILE_BYTES:
        raise RepositoryError(where, f"{file} of {size_bytes} bytes", f"at most {_FILE_BYTES}")
    stamp = f"{status.st_size} {status.st_mtime_ns}"
    return SampleValue(file=str(file), shape=shape, stamp=stamp, dtype=dtype)


def _array_of(
    file: BinaryIO, suffix: str, tensor: str, size_bytes: int
) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and bytes of a NumPy file's array, from its header alone; others say no shape.

    What an archive holds is unpacked by workers, if it is not too large.
    """
    if suffix == ".npz":
        with zipfile.ZipFile(file) as archive, archive.open(f"{tensor}.npy") as member:
            shape, dtype = _header(member)
            size_bytes = archive.getinfo(f"{tensor}.npy").file_size
    elif suffix == ".npy":
        shape, dtype = _header(file)
    else:
        return (), "", size_bytes
    if dtype.hasobject:
        raise ValueError("an array of objects: those are pickled, and never read")
    return shape, dtype.str, max(size_bytes, math.prod(shape) * dtype.itemsize)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return tuple(shape), dtype


def check_value(value: SampleValue, spec: TensorSpec, where: str) -> None:
    """That a value is one of the input's datatype.

    Raises:
        RepositoryError: it is of another, or out of its range.
    """
    wanted, found = spec.datatype, ""
    if value.text:
        array = np.asarray(json.loads(value.text))
        found = _misfit(array.dtype, wanted)
        if not array.size:
            found = "no value"
        elif not found and wanted in _RANGES and array.dtype.kind in "iu":
            least, most = _RANGES[wanted]
            beyond = [int(one) for one in (array.min(), array.max()) if not least <= one <= most]
            found = f"{beyond[0]}, which it does not hold" if beyond else ""
        elif not found and wanted in _LARGEST:
            largest = np.abs(array.astype(float)).max()
            found = f"{largest:g}, which it does not hold" if largest > _LARGEST[wanted] else ""
    elif value.dtype:
        found = _misfit(np.dtype(value.dtype), wanted)
    elif value.file and wanted != BYTES:
        size_bytes, item = Path(value.file).stat().st_size, ITEM_BYTES[wanted]
        least = item * math.prod(dim for dim in value.shape or spec.dims if dim > 0)
        if size_bytes < least or size_bytes % item:
            found = f"a file of {size_bytes} bytes: a value has {least}"
    if found:
        raise RepositoryError(where, found, f"values of {wanted} for '{spec.name}'")


def _misfit(dtype: np.dtype[Any], wanted: str) -> str:
    """What an array has that an input of that datatype does not take; empty if it fits."""
    kinds = {BYTES: "USu", "BOOL": "biu"}.get(
        wanted, "biuf" if "FP" in wanted or wanted == "BF16" else "biu"
    )
    if dtype.kind in kinds:
        return ""
    return {"U": "texts", "S": "texts", "f": "fractions", "b": "booleans"}.get(
        dtype.kind, f"numbers of {dtype.name}"
    )
