"""Triton's data types as numbers, names and NumPy types, and the binary form of text."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from interlace.core.tensor import frame, unframe
from interlace.formats.arrays import NUMPY_TYPES, objects
from interlace.formats.runner import Array

#: Triton's data types in the order of their numbers, which begin at 1.
TYPES: Final = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64", "BYTES",
)  # fmt: skip
DATATYPES: Final = {NUMPY_TYPES[name]: name for name in TYPES}
_NUMPY_CLASSES: Final = {name: NUMPY_TYPES[name].type for name in TYPES}
TRITON_STRING_TO_NUMPY: Final = {
    f"TYPE_{name.replace('BYTES', 'STRING')}": kind for name, kind in _NUMPY_CLASSES.items()
}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The NumPy type of a data type of the configuration, such as ``TYPE_FP32``.

    Raises:
        KeyError: NumPy has no such type.
    """
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The NumPy type of a data type's number; ``None`` if there is none."""
    return _NUMPY_CLASSES[TYPES[data_type - 1]] if 0 < data_type <= len(TYPES) else None


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of the data type of a NumPy type; ``None`` if there is none."""
    dtype = np.dtype(data_type)
    name = "BYTES" if dtype.kind == "S" else DATATYPES.get(dtype)
    return TYPES.index(name) + 1 if name else None


def serialize_byte_tensor(input_tensor: Array) -> bytes | tuple[()] | None:
    """The v2 binary form of an array of ``bytes`` or text; ``()`` if it is empty.

    ``None`` for an array of numbers.
    """
    if not input_tensor.size:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    texts = [one if isinstance(one, bytes) else str(one).encode() for one in input_tensor.flat]
    return frame(texts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """The elements of the v2 binary form, as one dim of ``bytes`` objects."""
    return objects(unframe(encoded_tensor))
