"""Tensors at addresses that the driver gave, and made-up ones that models are tried with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
import torch

from interlace.core.model import Model
from interlace.core.tensor import Signature, element_count
from interlace.device.cuda.memory.parameters import BatchParameters
from interlace.formats.arrays import given_array, hinted, sample_shape
from interlace.formats.torch_values import DATATYPES, to_torch

#: The torch types of the v2 datatypes that have a fixed size.
TORCH_TYPES: Final = {name: dtype for dtype, name in DATATYPES.items()}


class RunnableModel(Protocol):
    """A model on one lane. It reads rows from so many ``tables``, whose addresses follow those of
    the outputs at each launch."""

    described: Model
    signature: Signature
    device: str
    defaults: Mapping[str, int]
    tables: int

    def outputs(self, values: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run on made-up inputs: to be warmed up, measured, or understood."""

    def execute(
        self, values: Mapping[str, torch.Tensor], stream: int, parameters: BatchParameters
    ) -> tuple[torch.Tensor, ...]:
        """Run a batch that ``parameters`` describe on a stream, or record it there."""


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


_UNBOUNDED_ROWS: Final = 32


def most_rows(signature: Signature) -> int:
    """The largest batch; some number where neither model nor operator sets a bound."""
    return (signature.max_batch or _UNBOUNDED_ROWS) if signature.batched else 1


def sample_dims(model: Model, signature: Signature) -> dict[str, tuple[int, ...]]:
    """Dims of one row by input name, free ones as the operator states them."""
    return {spec.name: sample_shape(spec, model.sample) for spec in signature.inputs}


def sample_inputs(
    model: RunnableModel, dims: Mapping[str, tuple[int, ...]], rows: int, seed: int = 0
) -> dict[str, torch.Tensor]:
    """One batch of the inputs that ``dims`` names: the operator's values, or as their names hint.

    Else integers are ones; floats lie in 0..1, or are normally distributed if the seed is odd.

    Raises:
        ValueError, OSError: the operator's value cannot be read, or is of another datatype.
    """
    values = {}
    random = np.random.default_rng(seed)
    signature, described = model.signature, model.described
    for spec in (one for one in signature.inputs if one.name in dims):
        shape = (rows, *dims[spec.name]) if signature.batched else dims[spec.name]
        value = hinted(spec, shape, described, signature)
        array = given_array(spec, shape, value)
        if value is None and array.dtype.kind == "f":
            drawn = random.standard_normal(shape) if seed % 2 else random.random(shape)
            array = np.asarray(drawn, dtype=array.dtype)
        values[spec.name] = to_torch(array, spec.datatype).to(model.device)
    return values
