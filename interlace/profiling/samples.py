"""Synthetic tensors of a model: safe contents, the sizes its folder states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec, element_count
from interlace.formats.arrays import NUMPY_TYPES, WORD, sample_shape


def sample_dims(spec: TensorSpec, sizes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """``spec.dims`` with every -1 replaced by the stated size, batch dimension not included.

    ``sizes`` gives, per input, either all dims or those of the free ones in order.
    """
    return sample_shape(spec, tuple(sizes.get(spec.name, ())))


def content(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> bytes:
    """Bytes of one tensor that no sensible model chokes on, in the v2 binary form.

    Floats are uniform in 0..1. Integers are 0 or 1, which any vocabulary holds; masks are ones and
    token types zeros. ``BYTES`` elements are a short word.
    """
    count = element_count(shape)
    if spec.datatype == BYTES:
        return (len(WORD).to_bytes(4, "little") + WORD) * count
    random = np.random.default_rng(seed)
    if spec.datatype == "BF16":  # the upper half of a float32
        values = random.random(count, dtype=np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    dtype = NUMPY_TYPES[spec.datatype]
    if dtype.kind == "f":
        return random.random(count, dtype=np.float32).astype(dtype).tobytes()
    return _integers(spec.name.lower(), count, random).astype(dtype).tobytes()


def size_bytes(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    """Length of what ``content`` returns."""
    return ITEM_BYTES.get(spec.datatype, 4 + len(WORD)) * element_count(shape)


def _integers(name: str, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    if "mask" in name:
        return np.ones(count, dtype=np.int64)
    if "type" in name:
        return np.zeros(count, dtype=np.int64)
    return random.integers(0, 2, count)
