"""Tensor data as JSON and back, for every datatype and any shape."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from interlace.core.errors import ServeError
from interlace.core.tensor import BYTES, frame, unframe
from interlace.formats.arrays import NUMPY_TYPES
from interlace.server.tensor_json import BINARY_ONLY, decoded, to_bytes, to_json

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


def arrays(datatype: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    dtype = NUMPY_TYPES[datatype]
    elements: Any = None
    if dtype.kind == "f":
        width = dtype.itemsize * 8
        elements = st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[call-overload]
    return hnp.arrays(dtype, SHAPES, elements=elements)


@pytest.mark.parametrize("datatype", sorted(NUMPY_TYPES.keys() - {BYTES, *BINARY_ONLY}))
@given(data=st.data())
def test_round_trip_nested_and_flat(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    shape = array.shape
    for text in (json.dumps(array.tolist()), json.dumps(array.ravel().tolist(), indent=1)):
        if array.size or text.strip("[] \n") == "":
            assert to_bytes("x", datatype, shape, text.encode()) == array.tobytes()
    back = to_json("x", datatype, memoryview(array.tobytes()))
    assert np.array(json.loads(back), array.dtype).tobytes() == array.tobytes()


@given(st.lists(st.text()))
def test_texts_round_trip(texts: list[str]) -> None:
    shape = (len(texts),)
    packed = to_bytes("x", "BYTES", shape, json.dumps(texts).encode())
    assert unframe(memoryview(packed)) == [text.encode() for text in texts]
    assert json.loads(to_json("x", "BYTES", memoryview(packed))) == texts


@given(st.lists(st.binary()))
def test_framing_round_trip(elements: list[bytes]) -> None:
    assert unframe(memoryview(frame(elements))) == elements


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("UINT8", b"[256]", "does not fit UINT8"),
        ("INT8", b"[-129]", "does not fit INT8"),
        ("UINT64", b"[-1]", "does not fit UINT64"),
        ("INT64", b"[9223372036854775808]", "does not fit INT64"),
        ("FP32", b"[1e39]", "does not fit FP32"),
        ("FP64", b"[1e999]", "out of range"),
        ("INT32", b"[1.5]", "Expected `int`, got `float`"),
        ("INT32", b"[true]", "Expected `int`, got `bool`"),
        ("INT32", b'["1"]', "Expected `int`, got `str`"),
        ("FP32", b"[null]", "Expected `float`, got `null`"),
        ("INT32", b"[NaN]", "malformed"),
        ("FP32", b"[Nan]", "malformed"),
        ("FP32", b'["1.5"]', "Expected `float`"),
        ("FP32", b'["nan", NaN]', "Invalid enum value"),
        ("BOOL", b"[2]", "BOOL takes true, false, 0 and 1"),
        ("BYTES", b"[1]", "Expected `str`, got `int`"),
        ("FP16", b"[1]", "no JSON form"),
        ("FP32", b"{}", "must be an array"),
        ("FP32", b"[" * 17 + b"]" * 17, "nested deeper"),
        ("FP32", b"[[1], 2]", "Expected `array`, got `int`"),
    ],
)
def test_wrong_values_are_named(datatype: str, data: bytes, text: str) -> None:
    with pytest.raises(ServeError, match=text):
        to_bytes("x", datatype, (1,), data)


def test_bytes_that_are_no_text_have_no_json_form() -> None:
    with pytest.raises(ServeError, match="not UTF-8"):
        to_json("x", "BYTES", memoryview(frame([b"\xff"])))


def test_numbers_that_json_has_not_are_read_as_they_are_written() -> None:
    values = np.array([1.0, np.nan, -np.inf, np.inf], np.float32)
    for datatype, dtype in (("FP32", np.float32), ("FP64", np.float64)):
        view = memoryview(values.astype(dtype).tobytes())
        text = to_json("x", datatype, view)
        assert to_bytes("x", datatype, (4,), text) == bytes(view)


@pytest.mark.parametrize("text", [b'{"a": ,}', b'{"a": [NaN, NaN, -Infinity,]}', b'[NaN,"NaN",]'])
def test_an_error_names_the_byte_that_was_sent(text: bytes) -> None:
    told = msgspec.json.Decoder()
    plain = (
        text.replace(b"-Infinity", b"123456789").replace(b"NaN", b"123").replace(b'"123"', b'"abc"')
    )
    with pytest.raises(msgspec.DecodeError) as wanted:
        told.decode(plain)
    with pytest.raises(msgspec.DecodeError) as found:
        decoded(told, text)
    assert str(found.value) == str(wanted.value)


def test_a_text_that_names_them_stays_a_text() -> None:
    told = msgspec.json.Decoder(dict[str, str | float])
    text = b'{"a": "NaN \\" -Infinity", "b": -Infinity, "c": "NaN"}'
    assert decoded(told, text) == {"a": 'NaN " -Infinity', "b": "-Infinity", "c": "NaN"}


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * 300_000 + b" NaN", b"[" + b"-" * 300_000 + b" NaN"]
)
def test_what_never_closes_is_refused_in_one_pass(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(msgspec.json.Decoder(dict[str, str]), text)
