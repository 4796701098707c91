"""Typed ``contents`` of an input as the bytes that a raw tensor would have."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

from interlace.core.errors import Reason, ServeError

#: Datatype: the field that holds its elements, and ``array``'s code for them.
_FIELDS: Final[dict[str, tuple[str, str]]] = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}


def typed_bytes(name: str, datatype: str, contents: Any) -> bytes:
    """The elements of an ``InferTensorContents`` in the v2 binary form.

    Raises:
        ServeError: BAD_INPUT for elements in a field that is not the datatype's, or out of range.
    """
    found = _FIELDS.get(datatype)
    if found is None:
        raise _bad(name, f"datatype '{datatype}' has no typed contents: use raw_input_contents")
    field, code = found
    others = [each.name for each, _ in contents.ListFields() if each.name != field]
    if others:
        raise _bad(name, f"datatype '{datatype}' belongs in contents.{field}, not in {others[0]}")
    elements = getattr(contents, field)
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in elements)
    return _packed(name, datatype, elements, code)


def _packed(name: str, datatype: str, elements: Sequence[Any], code: str) -> bytes:
    try:
        values = array(code, elements)
    except OverflowError as error:
        at = next(i for i, each in enumerate(elements) if not _fits(code, each))
        text = f"element {at} is {elements[at]}, which {datatype} cannot hold"
        raise _bad(name, text) from error
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _fits(code: str, value: Any) -> bool:
    try:
        array(code, (value,))
    except OverflowError:
        return False
    return True


def _bad(name: str, detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, f"input '{name[:128]}': {detail}")
