"""Tensors at addresses that the driver gave."""

from __future__ import annotations

from typing import Final

import torch

from interlace.core.tensor import element_count
from interlace.formats.torch_values import DATATYPES

#: The torch types of the v2 datatypes that have a fixed size.
TORCH_TYPES: Final = {name: dtype for dtype, name in DATATYPES.items()}


def tensor_at(
    address: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """A tensor on memory that stays the caller's: it must outlive the tensor.

    ``stride`` in elements, for a dense tensor in another order of dims.
    """
    nbytes = element_count(shape) * dtype.itemsize
    empty = torch.empty(0, dtype=dtype, device=device)
    if not nbytes:
        return empty.reshape(shape)
    where = torch.device(device)
    storage = torch._C._construct_storage_from_data_pointer(address, where, nbytes)
    if stride is None:
        return empty.set_(storage, 0, shape)
    return empty.set_(storage, 0, shape, stride)
