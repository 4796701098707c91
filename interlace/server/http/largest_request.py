"""How large a request of a model can be, from its signature."""

from __future__ import annotations

from typing import Final

from interlace.core.model import Model
from interlace.core.tensor import ITEM_BYTES, element_count

#: A number in JSON with what stands around it, indented too.
_JSON_ITEM_BYTES: Final = 64


def largest_bytes(model: Model, json: bool) -> int | None:
    """The bytes of the largest request's tensors, as binary data or as JSON text.

    ``None`` where the signature sets no bound: a dim of any size, or elements of any length.
    """
    rows = model.signature.max_batch if model.signature.batched else 1
    total = 0
    for spec in model.signature.inputs:
        size = ITEM_BYTES.get(spec.datatype)
        if size is None or min(spec.dims, default=1) < 0:
            return None
        total += rows * element_count(spec.dims) * (_JSON_ITEM_BYTES if json else size)
    return total
