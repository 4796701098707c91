"""Synthetic requests of a model: safe contents, the sizes its folder states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec, element_count

_TEXT: Final = b"interlace"
_INTEGERS: Final[dict[str, type[np.generic]]] = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}


class UnknownSize(Exception):
    """An input with a free dimension for which nobody stated a size."""


def sample_dims(spec: TensorSpec, sizes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """``spec.dims`` with every -1 replaced by the stated size, batch dimension not included.

    ``sizes`` gives, per input, either all dims or those of the free ones in order.

    Raises:
        UnknownSize: a dim is -1 and no size is stated.
    """
    stated = tuple(sizes.get(spec.name, ()))
    free = [index for index, size in enumerate(spec.dims) if size < 0]
    if not free:
        return spec.dims
    if len(stated) == len(spec.dims):
        return tuple(
            given if size < 0 else size for given, size in zip(stated, spec.dims, strict=True)
        )
    if len(stated) != len(free):
        raise UnknownSize(
            f"input {spec.name} has dims {list(spec.dims)}; -1 needs a size, {list(stated)} given"
        )
    filled = list(spec.dims)
    for index, size in zip(free, stated, strict=True):
        filled[index] = size
    return tuple(filled)


def content(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> bytes:
    """Bytes of one tensor that no sensible model chokes on, in the v2 binary form.

    Floats are uniform in 0..1. Integers are 0 or 1, which any vocabulary holds; masks are ones and
    token types zeros. ``BYTES`` elements are a short word.
    """
    count = element_count(shape)
    random = np.random.default_rng(seed)
    if spec.datatype == BYTES:
        return (len(_TEXT).to_bytes(4, "little") + _TEXT) * count
    if spec.datatype == "BOOL":
        return b"\x01" * count
    if spec.datatype in _INTEGERS:
        return (
            _integers(spec.name.lower(), count, random).astype(_INTEGERS[spec.datatype]).tobytes()
        )
    return _floats(spec.datatype, random.random(count, dtype=np.float32))


def size_bytes(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    """Length of what ``content`` returns."""
    item = ITEM_BYTES.get(spec.datatype, 4 + len(_TEXT))
    return item * element_count(shape)


def _integers(name: str, count: int, random: np.random.Generator) -> np.ndarray:
    if "mask" in name:
        return np.ones(count, dtype=np.int64)
    if "type" in name:
        return np.zeros(count, dtype=np.int64)
    return random.integers(0, 2, count)


def _floats(datatype: str, values: np.ndarray) -> bytes:
    match datatype:
        case "FP16":
            return values.astype(np.float16).tobytes()
        case "FP64":
            return values.astype(np.float64).tobytes()
        case "BF16":  # the upper half of a float32
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.tobytes()
