"""Tensors by reference: where the bytes lie, never the bytes."""

from __future__ import annotations

from collections.abc import Iterable
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
    """What a model declares of one tensor: ``dims`` exclude the batch dimension, -1 is any size.

    Clients send and receive ``dims``. ``model_dims`` are the model's own, where they differ: as
    many elements and as many free dims, in the same order (Triton's ``reshape``). Free dims of one
    name have one size in a request; ``free_names`` are in their order, empty for those of no name.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    model_dims: tuple[int, ...] | None = None
    free_names: tuple[str, ...] = ()

    @property
    def free_dim(self) -> int:
        """The size of its free dims in samples where none is stated: with many, 64 is too large."""
        return FREE_DIM if self.dims.count(-1) <= 3 else 8

    @property
    def own(self) -> TensorSpec:
        """The tensor as the model declares it."""
        if self.model_dims is None:
            return self
        dims = self.model_dims
        return TensorSpec(self.name, self.datatype, dims, self.optional, None, self.free_names)

    def named_sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
        """The sizes of named free dims in a client's shape, with or without rows in front."""
        sizes = shape[len(shape) - len(self.dims) :]
        free = [size for size, dim in zip(sizes, self.dims, strict=True) if dim < 0]
        return {name: size for name, size in zip(self.free_names, free, strict=False) if name}

    def model_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A client's shape, with or without rows in front, as the model has it."""
        return _with_dims(shape, self.dims, self.own.dims)

    def client_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of the model, with or without rows in front, as clients have it."""
        return _with_dims(shape, self.own.dims, self.dims)


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model.

    ``batched`` says whether the first dimension of every tensor counts rows; ``max_batch`` is then
    the largest row count of one execution (1 and ``batched=False`` for a model that takes one
    request at a time, whose dims are the full shape). ``overridable`` are inputs that have a value
    of their own and no rows: a model that takes no batches can have them as optional inputs.
    A ``decoupled`` model sends any number of responses to a request.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool
    max_batch: int
    overridable: tuple[TensorSpec, ...] = ()
    decoupled: bool = False


def _with_dims(
    shape: tuple[int, ...], dims: tuple[int, ...], other: tuple[int, ...]
) -> tuple[int, ...]:
    rows = len(shape) - len(dims)
    free = iter([size for size, dim in zip(shape[rows:], dims, strict=True) if dim < 0])
    return (*shape[:rows], *(next(free) if dim < 0 else dim for dim in other))


def element_count(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape; 1 for a scalar."""
    count = 1
    for size in shape:
        count *= size
    return count


def frame(elements: Iterable[bytes]) -> bytes:
    """``BYTES`` elements in the v2 binary form: a 4-byte little-endian length before each."""
    return b"".join([len(one).to_bytes(4, "little") + one for one in elements])


def unframe(data: bytes | memoryview) -> list[bytes]:
    """The elements of a ``BYTES`` tensor; the last is cut short where the data ends inside it."""
    elements = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        elements.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return elements
