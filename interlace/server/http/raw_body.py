"""A request body that is one tensor and nothing else."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import bad_input
from interlace.core.model import Model
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.server.http.decoded_request import DecodedRequest, InputSource

#: A BYTES body is one element; its length goes in front.
LENGTH_BYTES: Final = 4


def decode_raw(model: Model, nbytes: int) -> DecodedRequest:
    """What a raw body of ``nbytes`` means to a model with one input; outputs come as bytes.

    Fixed dims: as many rows as the bytes make. One dim of -1: one row, that dim from the bytes.
    BYTES: one element, ``LENGTH_BYTES`` longer than the body.

    Raises:
        ServeError: the model has more inputs, or the bytes fit none of its shapes.
    """
    inputs = model.signature.inputs
    if len(inputs) != 1:
        raise bad_input(
            f"a raw body (Inference-Header-Content-Length: 0) needs a model with one input, "
            f"but '{model.name}' has {len(inputs)}"
        )
    spec = inputs[0]
    if spec.datatype == BYTES:
        dims, size = _one_element(model, spec), nbytes + LENGTH_BYTES
        source = InputSource(spec.name, BYTES, dims, -LENGTH_BYTES, size)
    else:
        source = InputSource(spec.name, spec.datatype, _shape(model, spec, nbytes), 0, nbytes)
    return DecodedRequest("", (source,), (), {"binary_data_output": True})


def _one_element(model: Model, spec: TensorSpec) -> tuple[int, ...]:
    if any(size not in (-1, 1) for size in spec.dims):
        raise _unfit(model, spec, "more than one BYTES element")
    ones = (1,) * len(spec.dims)
    return (1, *ones) if model.signature.batched else ones


def _shape(model: Model, spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    free = spec.dims.count(-1)
    row_bytes = ITEM_BYTES[spec.datatype]
    for size in spec.dims:
        row_bytes *= size if size >= 0 else 1
    if free > 1 or not row_bytes or nbytes % row_bytes:
        raise _unfit(model, spec, f"a multiple of {row_bytes} bytes and at most one free dim")
    count = nbytes // row_bytes
    batched = model.signature.batched
    if not free:
        if not batched and count != 1:
            raise _unfit(model, spec, f"exactly {row_bytes} bytes")
        return (count, *spec.dims) if batched else spec.dims
    dims = tuple(count if size < 0 else size for size in spec.dims)
    return (1, *dims) if batched else dims


def _unfit(model: Model, spec: TensorSpec, needs: str) -> Exception:
    return bad_input(
        f"a raw body does not fit input '{spec.name}' of '{model.name}': {spec.datatype} "
        f"{list(spec.dims)} needs {needs}"
    )
