"""Datatypes of the wire as numpy has them, and a check of what a model returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from interlace.core.model import Model
from interlace.core.tensor import BYTES, FREE_DIM, Signature, TensorSpec
from interlace.formats.runner import Array

#: BF16 has no numpy type: its bits travel as uint16.
NUMPY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(np.object_),
}

WORD: Final = b"interlace"  #: an element of type ``BYTES``


def check_outputs(outputs: Mapping[str, Array], signature: Signature, rows: int) -> None:
    """Refuse results that would be sent with a wrong type or cut at the wrong rows.

    Raises:
        ValueError: an output's datatype, rank, size or row count is not what the signature says.
    """
    for spec in signature.outputs:
        array = outputs[spec.name]
        if array.dtype != NUMPY_TYPES[spec.datatype]:
            raise ValueError(
                f"output '{spec.name}' came as numpy {array.dtype}, "
                f"but the model is described as returning {spec.datatype}"
            )
        dims = (rows, *spec.dims) if signature.batched else spec.dims
        fits = len(dims) == array.ndim and all(
            wanted in (-1, found) for wanted, found in zip(dims, array.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"output '{spec.name}' came with shape {list(array.shape)}, "
                f"but the model is described as returning {list(dims)}"
            )


def sample_inputs(model: Model, signature: Signature, rows: int) -> dict[str, Array]:
    """Made-up inputs of so many rows, of the sizes that the model's sample says."""
    inputs = {}
    for spec in signature.inputs:
        dims = sample_shape(spec, model.sample)
        inputs[spec.name] = sample_array(spec, (rows, *dims) if signature.batched else dims)
    return inputs


def sample_array(spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    """Contents no sensible model chokes on: ones, floats in 0..1, a word for ``BYTES``."""
    dtype = NUMPY_TYPES[spec.datatype]
    if spec.datatype == BYTES:
        return np.full(shape, WORD, dtype=object)
    if spec.datatype == "BF16":
        return np.full(shape, 0x3F00, dtype=np.uint16)  # 0.5
    if dtype.kind == "f":
        return np.random.default_rng(0).random(shape, dtype=np.float32).astype(dtype)
    return np.ones(shape, dtype=dtype)


def sample_shape(spec: TensorSpec, sample: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """``spec.dims`` with each -1 replaced by the stated sizes in order, by 64 where they end.

    ``sample`` gives, per input, either all dims or those of the free ones in order.
    """
    sizes = sample.get(spec.name, ())
    if len(sizes) == len(spec.dims):  # a full shape: keep what stands at free dims
        sizes = [size for size, dim in zip(sizes, spec.dims, strict=True) if dim < 0]
    given = iter(sizes)
    return tuple(next(given, FREE_DIM) if dim < 0 else dim for dim in spec.dims)
