"""Typed ``contents`` of an input as the bytes that a raw tensor would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from interlace.core.errors import Reason, ServeError

#: Datatype: the field that holds its elements, and numpy's name for it.
_FIELDS: Final[dict[str, tuple[str, str]]] = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "<i1"),
    "INT16": ("int_contents", "<i2"),
    "INT32": ("int_contents", "<i4"),
    "INT64": ("int64_contents", "<i8"),
    "UINT8": ("uint_contents", "<u1"),
    "UINT16": ("uint_contents", "<u2"),
    "UINT32": ("uint_contents", "<u4"),
    "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"),
    "FP64": ("fp64_contents", "<f8"),
    "BYTES": ("bytes_contents", ""),
}


def typed_bytes(name: str, datatype: str, contents: Any) -> bytes:
    """The elements of an ``InferTensorContents`` in the v2 binary form.

    Raises:
        ServeError: BAD_INPUT for elements in a field that is not the datatype's, or out of range.
    """
    found = _FIELDS.get(datatype)
    if found is None:
        raise _bad(
            name, f"datatype '{datatype}' cannot be sent as contents; use raw_input_contents"
        )
    field, kind = found
    others = [each.name for each, _ in contents.ListFields() if each.name != field]
    if others:
        raise _bad(name, f"datatype '{datatype}' belongs in contents.{field}, not in {others[0]}")
    elements = getattr(contents, field)
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    return _packed(name, datatype, elements, np.dtype(kind))


def _packed(name: str, datatype: str, elements: Sequence[Any], kind: np.dtype[Any]) -> bytes:
    if kind.kind in "iu" and kind.itemsize < 4:
        wide = np.fromiter(elements, np.int64, len(elements))
        limits = np.iinfo(kind)
        wrong = np.flatnonzero((wide < limits.min) | (wide > limits.max))
        if wrong.size:
            at = int(wrong[0])
            raise _bad(name, f"element {at} is {wide[at]}, which {datatype} cannot hold")
        return wide.astype(kind).tobytes()
    return np.fromiter(elements, kind, len(elements)).tobytes()


def _bad(name: str, detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, f"input '{name[:128]}': {detail}")
