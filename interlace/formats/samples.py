"""Sample inputs of a torch model: what it is tried out on when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from interlace.core.model import Model
from interlace.core.tensor import TensorSpec
from interlace.formats.arrays import given_array, hinted, sample_shape
from interlace.formats.torch_values import to_torch

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
            model.values.get(spec.name) or hinted(spec, shapes[spec.name], model, model.signature),
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
