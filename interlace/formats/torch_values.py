"""Numpy arrays to torch tensors and back, sharing memory; a model's result as named values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from interlace.core.model import Model
from interlace.core.tensor import BYTES, TensorSpec
from interlace.formats.arrays import given_array, hinted, sample_shape
from interlace.formats.runner import Array

#: How results without a name are called, as Triton's PyTorch backend expects them.
UNNAMED: Final = "OUTPUT__"

#: The v2 datatypes of a fixed size by torch's types.
DATATYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}


def accept_read_only_arrays() -> None:
    """Use up torch's one warning about read-only numpy arrays.

    Inputs lie in memory that this process may only read. Models that write into their inputs get
    copies (see ``trial``), so the warning would be noise.
    """
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)


def to_torch(array: Array, datatype: str) -> Any:
    """A tensor on the array's memory; ``BYTES`` have no tensor and stay an object array."""
    if datatype == BYTES:
        return array
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype == "BF16" else tensor


def to_numpy(value: Any) -> Array:
    """An array on the tensor's memory, BF16 as uint16; numpy arrays and numbers pass."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Array = tensor.numpy()
    return array


def datatype_of(dtype: torch.dtype) -> str | None:
    """The v2 datatype of a torch type, ``None`` if the wire has none for it."""
    return DATATYPES.get(dtype)


def value_datatype(value: Any) -> str | None:
    """The v2 datatype of one result; object arrays of bytes are ``BYTES``."""
    if isinstance(value, torch.Tensor):
        return datatype_of(value.dtype)
    array = np.asarray(value)
    if array.dtype == np.object_:
        return BYTES
    return datatype_of(torch.from_numpy(np.empty(0, array.dtype)).dtype)


def named_values(result: Any) -> dict[str, Any]:
    """A model's result as values by name: dict keys, or ``OUTPUT__0``, ``OUTPUT__1`` ...

    Nested results are flattened, with the names joined by dots; ``None`` is left out.
    """
    if isinstance(result, Mapping):
        return _flatten([(str(key), value) for key, value in result.items()])
    if isinstance(result, list | tuple):
        return _flatten([(f"{UNNAMED}{place}", value) for place, value in enumerate(result)])
    return {f"{UNNAMED}0": result}


def pick(values: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The values of the declared outputs: by name, or in order if the model names none of them.

    Raises:
        ValueError: names are unknown and the counts differ, so that order says nothing.
    """
    if all(spec.name in values for spec in specs):
        return {spec.name: values[spec.name] for spec in specs}
    if len(values) != len(specs):
        raise ValueError(
            f"outputs {[spec.name for spec in specs]} are described, but the model returned "
            f"{len(values)}: {list(values)}"
        )
    return dict(zip([spec.name for spec in specs], values.values(), strict=True))


def _flatten(items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in items:
        if isinstance(value, Mapping | list | tuple):
            inner = named_values(value)
            flat |= {f"{name}.{key.removeprefix(UNNAMED)}": part for key, part in inner.items()}
        elif value is not None:
            flat[name] = value
    return flat


#: Rows of the first and the second sample of a model that takes batches.
ROWS: Final = (1, 2)


def sample_shapes(
    specs: Sequence[TensorSpec], model: Model, batched: bool, attempt: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of the first (``attempt`` 0) or second sample by input name.

    The second has another number of rows and smaller free dims: other sizes show which output
    dims follow them, and smaller ones exceed no limit of the model.
    """
    rows = (ROWS[attempt],) if batched else ()
    shapes = {}
    for spec in specs:
        refined = _refined(spec, model)
        dims = sample_shape(refined, model.sample)
        if attempt:
            pairs = zip(dims, refined.dims, strict=True)
            dims = tuple((size // 2 or 2) if free < 0 else size for size, free in pairs)
        shapes[spec.name] = (*rows, *refined.model_shape(dims))
    return shapes


def sample_values(
    specs: Sequence[TensorSpec], model: Model, batched: bool, attempt: int
) -> dict[str, Any]:
    """New tensors (object arrays for ``BYTES``) of those shapes by input name."""
    shapes = sample_shapes(specs, model, batched, attempt)
    arrays = {
        spec.name: given_array(
            spec,
            shapes[spec.name],
            hinted(spec, shapes[spec.name], model, model.signature),
        )
        for spec in specs
    }
    return {spec.name: to_torch(arrays[spec.name], spec.datatype) for spec in specs}


def _refined(spec: TensorSpec, model: Model) -> TensorSpec:
    # The description may give sizes where the model's own file has free dims.
    for other in model.signature.inputs:
        if other.name == spec.name and len(other.own.dims) == len(spec.own.dims):
            return other
    return spec
