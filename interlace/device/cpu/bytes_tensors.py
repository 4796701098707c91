"""BYTES tensors: length-prefixed elements on the wire, object arrays of bytes in a model."""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from interlace.core.tensor import element_count
from interlace.formats.runner import Array

_LENGTH: Final = Struct("<I")


def unpack_strings(parts: list[memoryview], shape: tuple[int, ...], name: str) -> Array:
    """An object array of ``shape`` from v2 binary parts, one after the other.

    Raises:
        ValueError: the elements do not fill the shape, or a length reaches beyond its part.
    """
    elements: list[bytes] = []
    for part in parts:
        at = 0
        while at < len(part):
            start = at + _LENGTH.size
            if start > len(part):
                raise ValueError(f"BYTES input '{name}' ends within a length")
            at = start + _LENGTH.unpack_from(part, at)[0]
            if at > len(part):
                raise ValueError(f"BYTES input '{name}' ends within an element")
            elements.append(bytes(part[start:at]))
    if len(elements) != element_count(shape):
        raise ValueError(
            f"BYTES input '{name}' has {len(elements)} elements, "
            f"its shape {list(shape)} needs {element_count(shape)}"
        )
    array: Array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def pack_strings(array: Array) -> bytes:
    """The v2 binary form of an array of bytes or text (as UTF-8)."""
    pieces: list[bytes] = []
    for element in array.reshape(-1).tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        pieces += (_LENGTH.pack(len(data)), data)
    return b"".join(pieces)
