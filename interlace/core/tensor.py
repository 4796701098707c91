"""Tensors by reference: where the bytes lie, never the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

BYTES: Final = "BYTES"
FREE_DIM: Final = 64  #: size of a free dimension in sample inputs where none is stated

#: Bytes per element of every fixed-size v2 datatype; ``BYTES`` elements have no fixed size.
ITEM_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}


class Span(NamedTuple):
    """A run of bytes in the shared-memory arena of that number (see ``shm.arena``)."""

    arena: int
    offset: int
    nbytes: int


class Tensor(NamedTuple):
    """One tensor of one request or reply: name, v2 datatype, full shape (batch first), bytes.

    ``BYTES`` tensors lie in the arena as the v2 binary form: a 4-byte little-endian length before
    each element.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a model declares of one tensor: ``dims`` exclude the batch dimension, -1 is any size."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model.

    ``batched`` says whether the first dimension of every tensor counts rows; ``max_batch`` is then
    the largest row count of one execution (1 and ``batched=False`` for a model that takes one
    request at a time, whose dims are the full shape).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool
    max_batch: int


def element_count(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape; 1 for a scalar."""
    count = 1
    for size in shape:
        count *= size
    return count
