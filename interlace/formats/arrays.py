"""Datatypes of the wire as numpy has them, and a check of what a model returned."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from interlace.core.errors import bad_input
from interlace.core.model import Model, SampleValue
from interlace.core.sequence import ControlInput, ControlKind, SequenceStep
from interlace.core.tensor import BYTES, Signature, TensorSpec, frame, unframe
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

#: Names of inputs that tell sizes.
_SIZES: Final = re.compile("size|shape")
WORD: Final = b"interlace"  #: an element of type ``BYTES``


def model_inputs(inputs: Mapping[str, Array], signature: Signature) -> dict[str, Array]:
    """The inputs of clients in the shapes that the model takes."""
    shaped = dict(inputs)
    for spec in signature.inputs:
        if spec.model_dims is not None and spec.name in shaped:
            array = shaped[spec.name]
            shaped[spec.name] = array.reshape(spec.model_shape(array.shape))
    return shaped


def client_outputs(
    outputs: Mapping[str, Array], signature: Signature, rows: int
) -> dict[str, Array]:
    """Results in the shapes that clients receive.

    Results with a wrong type or row count are refused. Other sizes are sent as the model returned
    them: they may depend on values, which two trial runs need not show.

    Raises:
        ValueError: an output's datatype, rank or row count differs from the signature.
    """
    shaped = dict(outputs)
    for spec in signature.outputs:
        array = outputs[spec.name]
        if array.dtype != NUMPY_TYPES[spec.datatype]:
            raise ValueError(
                f"output '{spec.name}' came as numpy {array.dtype}, "
                f"but the model is described as returning {spec.datatype}"
            )
        dims = (rows, *spec.own.dims) if signature.batched else spec.own.dims
        cut = 1 if signature.batched else 0
        if len(dims) != array.ndim or dims[:cut] != array.shape[:cut]:
            raise ValueError(
                f"output '{spec.name}' came with shape {list(array.shape)}, "
                f"but the model is described as returning {list(dims)}"
            )
        if spec.model_dims is not None:
            shaped[spec.name] = array.reshape(spec.client_shape(array.shape))
    return shaped


def sample_inputs(model: Model, signature: Signature, rows: int) -> dict[str, Array]:
    """Made-up inputs of so many rows, of the sizes that the model's sample says."""
    inputs = {}
    for spec in signature.inputs:
        dims = sample_shape(spec, model.sample)
        shape = (rows, *dims) if signature.batched else dims
        inputs[spec.name] = given_array(spec, shape, hinted(spec, shape, model, signature))
    return inputs


def given_array(spec: TensorSpec, shape: tuple[int, ...], value: SampleValue | None) -> Array:
    """The operator's value for an input in that shape, repeated or cut; without one, a made-up one.

    Raises:
        ValueError, OSError: the value cannot be read, or is of another datatype.
    """
    if value is None:
        return sample_array(spec, shape)
    dtype = NUMPY_TYPES[spec.datatype]
    if not value.text and not value.file:
        zero = b"" if spec.datatype == BYTES else 0
        return np.full(shape, zero, dtype=dtype)
    array = read_value(spec, value)
    if not array.size:
        raise ValueError(f"the sample value of '{spec.name}' has no element")
    return np.resize(array.ravel(), shape)


def read_value(spec: TensorSpec, value: SampleValue) -> Array:
    """A value in its own shape; the elements of a file that is not NumPy's have one dim.

    Raises:
        ValueError, OSError: the value cannot be read, or is of another datatype.
    """
    dtype = NUMPY_TYPES[spec.datatype]
    return _read_text(value.text, dtype) if value.text else _read_file(value.file, spec)


def wire_bytes(array: Array) -> bytes:
    """An array in the v2 binary form; elements of ``BYTES`` have their length before them."""
    if array.dtype != np.object_:
        return array.tobytes()
    return frame(array.ravel())


def hinted(
    spec: TensorSpec, shape: tuple[int, ...], model: Model, signature: Signature
) -> SampleValue | None:
    """The operator's value for an input, or one that its name suggests; ``None`` for others.

    A shape or sizes of as many dims as another input has are that input's; else height and width.
    """
    if (stated := model.values.get(spec.name)) is not None:
        return stated
    numbers = NUMPY_TYPES[spec.datatype].kind in "iuf"
    if not numbers or len(spec.dims) != 1 or not _SIZES.search(spec.name.lower()):
        return None
    count = shape[-1]
    others = [
        sample_shape(one, model.sample)
        for one in signature.inputs
        if one.name != spec.name and len(one.dims) > 1
    ]
    alike = next((dims for dims in others if len(dims) == count), None)
    if alike is None:
        alike = next((dims[-count:] for dims in others if len(dims) > count), (1,) * count)
    return SampleValue(json.dumps(alike))


def _read_text(text: str, dtype: np.dtype[Any]) -> Array:
    array = np.asarray(json.loads(text))
    if dtype == np.object_:
        return _as_bytes(array).reshape(array.shape)
    return array.astype(dtype)


def _read_file(path: str, spec: TensorSpec) -> Array:
    dtype = NUMPY_TYPES[spec.datatype]
    if path.endswith((".npy", ".npz")):
        read = np.load(path, allow_pickle=False)
        array: Array = read if path.endswith(".npy") else read[spec.name]
        if spec.datatype != BYTES:
            return array.astype(dtype)
        texts = _as_bytes(array)
        return texts if array.dtype == np.uint8 else texts.reshape(array.shape)
    data = Path(path).read_bytes()
    if spec.datatype != BYTES:
        return np.frombuffer(data, dtype)
    elements = unframe(data)
    if frame(elements) != data or not data:  # no lengths: an image, a text
        elements = [data]
    return objects(elements)


def objects(elements: Sequence[object]) -> Array:
    """Elements as an array of one dim, whatever they are."""
    made = np.empty(len(elements), dtype=object)
    made[:] = elements
    return made


def _as_bytes(array: Array) -> Array:
    if array.dtype == np.uint8:  # what a file holds, as np.fromfile reads it
        return objects([array.tobytes()])
    return objects([one if isinstance(one, bytes) else str(one).encode() for one in array.ravel()])


def text_of(name: str, array: Array, library: str) -> list[str]:
    """The elements of an input of type ``BYTES`` as text.

    Raises:
        ServeError: BAD_INPUT, what the ``library`` does not take.
    """
    try:
        return [element.decode() for element in array.ravel()]
    except UnicodeDecodeError as error:
        detail = f"input '{name}': {library} takes UTF-8 strings only ({error})"
        raise bad_input(detail) from error


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
    """``spec.dims`` with each -1 replaced by the stated sizes in order, then by the usual one.

    ``sample`` gives, per input, either all dims or those of the free ones in order.
    """
    sizes = sample.get(spec.name, ())
    if len(sizes) == len(spec.dims) + 1:  # rows in front
        sizes = sizes[1:]
    if len(sizes) == len(spec.dims):  # a full shape: keep what stands at free dims
        sizes = [size for size, dim in zip(sizes, spec.dims, strict=True) if dim < 0]
    given = iter(sizes)
    return tuple(next(given, spec.free_dim) if dim < 0 else dim for dim in spec.dims)


def control_array(control: ControlInput, step: SequenceStep, shape: tuple[int, ...]) -> Array:
    """A control tensor of a request; its elements are equal.

    Raises:
        ServeError: BAD_INPUT, an id of text for a number.
    """
    datatype, name = control.spec.datatype, control.spec.name
    numpy_type, value = NUMPY_TYPES[datatype], step.id
    if control.kind is not ControlKind.CORRID:
        set_ = {ControlKind.START: step.start, ControlKind.END: step.end}.get(control.kind, True)
        return np.full(shape, control.values[set_], numpy_type)
    if datatype == BYTES:
        return np.full(shape, str(value).encode(), object)
    if isinstance(value, str):
        raise bad_input(
            f"sequence_id '{value[:64]}' is text; the model's control tensor '{name}' takes "
            f"{datatype}"
        )
    bits = 8 * numpy_type.itemsize
    return np.full(shape, value % (1 << bits), f"u{numpy_type.itemsize}").view(numpy_type)
