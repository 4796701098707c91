"""The classification extension: an output's highest values as ``value:index[:label]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, Tensor
from interlace.server.tensor_json import DTYPES, frame

_HALF: Final = np.dtype("<f2")


def classified(
    model: Model, tensor: Tensor, view: memoryview, classes: int
) -> tuple[tuple[int, ...], bytes]:
    """An output as its top classes: shape and bytes of a BYTES tensor, as ``top_classes`` says.

    Raises:
        ServeError: the datatype cannot be ranked.
    """
    labels = model.labels.get(tensor.name, ())
    shape, elements = top_classes(tensor, view, classes, model.signature.batched, labels)
    return shape, frame(elements)


def top_classes(
    tensor: Tensor, view: memoryview, classes: int, batched: bool, labels: Sequence[str] = ()
) -> tuple[tuple[int, ...], list[bytes]]:
    """Shape and BYTES elements of the ``classes`` highest values of each row.

    ``view`` holds the tensor's bytes. A row is everything after the batch dimension, or the whole
    tensor of a model without one. Fewer values than asked for are all given. Equal values come in
    order of their index.

    Raises:
        ServeError: the datatype cannot be ranked.
    """
    rows = tensor.shape[0] if batched and tensor.shape else 1
    values = _numbers(tensor, view).reshape(rows, -1)
    count = min(classes, values.shape[1])
    best = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :count]
    elements = [
        _element(values[row, index], int(index), labels)
        for row, indices in enumerate(best)
        for index in indices
    ]
    return ((rows, count) if batched else (count,)), elements


def _numbers(tensor: Tensor, view: memoryview) -> np.ndarray[Any, np.dtype[Any]]:
    if tensor.datatype in DTYPES and tensor.datatype != "BOOL":
        return np.frombuffer(view, DTYPES[tensor.datatype])
    if tensor.datatype == "FP16":
        return np.frombuffer(view, _HALF)
    if tensor.datatype == "BF16":  # the upper half of an FP32
        return (np.frombuffer(view, "<u2").astype("<u4") << 16).view("<f4")
    kinds = "numbers, not text" if tensor.datatype == BYTES else "numbers"
    raise ServeError(
        Reason.BAD_INPUT,
        f"output '{tensor.name}' is {tensor.datatype}; classification ranks {kinds}",
    )


def _element(value: Any, index: int, labels: Sequence[str]) -> bytes:
    number = f"{value:f}" if isinstance(value, np.floating) else str(int(value))
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{number}:{index}{label}".encode()
