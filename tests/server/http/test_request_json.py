"""The JSON part of a request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Signature, TensorSpec
from interlace.server.dataplane.tensor_places import RegionSpan
from interlace.server.http.request_json import decode_generate, decode_request

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
KEYS = st.sampled_from(
    ["inputs", "outputs", "id", "parameters", "name", "shape", "datatype", "data",
     "binary_data_size", "shared_memory_region", "classification", "x"]
)  # fmt: skip
#: Things that look like requests: the right keys in wrong places, with wrong values.
LIKELY = st.recursive(
    NESTED | st.just("FP32") | st.integers(0, 8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


def body(**more: Any) -> bytes:
    given: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    return json.dumps({"inputs": [given | more.pop("input", {})], **more}).encode()


@given(st.dictionaries(KEYS, LIKELY, max_size=5), st.booleans())
def test_anything_is_decoded_or_refused(document: dict[str, Any], has_header: bool) -> None:
    try:
        decode_request(json.dumps(document).encode(), has_header)
    except ServeError as error:
        assert error.reason is Reason.BAD_INPUT
        assert error.detail


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with pytest.raises(ServeError):
        decode_request(data, True)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_binary_inputs_lie_one_after_another(sizes: list[int]) -> None:
    inputs = [
        {"name": str(i), "datatype": "UINT8", "shape": [n], "parameters": {"binary_data_size": n}}
        for i, n in enumerate(sizes)
    ]
    decoded = decode_request(json.dumps({"inputs": inputs}).encode(), True)
    assert decoded.binary_bytes == sum(sizes)
    assert [s.offset for s in decoded.sources] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert decoded.in_place == decoded.sources


def test_unaligned_inputs_do_not_lie() -> None:
    inputs = [
        {"name": "a", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "b", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
    ]
    assert decode_request(json.dumps({"inputs": inputs}).encode(), True).in_place is None
    swapped = decode_request(json.dumps({"inputs": inputs[::-1]}).encode(), True)
    assert swapped.in_place is not None


def test_regions() -> None:
    parameters = {
        "shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 4,
    }  # fmt: skip
    decoded = decode_request(body(input={"parameters": parameters}), False)
    assert decoded.sources[0].region == RegionSpan("r", 8, 4)
    assert decoded.in_place is None


@pytest.mark.parametrize(
    ("outputs", "parameters", "plain"),
    [
        (None, {}, False),
        (None, {"binary_data_output": True}, True),
        ([{"name": "y"}], {"binary_data_output": True}, True),
        ([{"name": "y", "parameters": {"binary_data": True}}], {}, True),
        (
            [{"name": "y", "parameters": {"binary_data": False}}],
            {"binary_data_output": True},
            False,
        ),
        ([{"name": "y", "parameters": {"binary_data": True, "classification": 1}}], {}, False),
    ],
)
def test_which_outputs_are_plain(outputs: Any, parameters: Any, plain: bool) -> None:
    data = body(input={"data": [1, 2]}, outputs=outputs, parameters=parameters)
    assert decode_request(data, False).plain is plain


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (body(input={"data": [1, 2], "parameters": {"binary_data_size": 8}}), "exactly one of"),
        (body(input={"parameters": {"binary_data_size": -1}}), "at least 0, got -1"),
        (body(input={"parameters": {"binary_data_size": True}}), "at least 0, got True"),
        (body(input={"parameters": {"shared_memory_region": 5}}), "must be a string"),
        (body(input={"parameters": {"shared_memory_region": "r"}}), "shared_memory_byte_size"),
        (body(input={"data": [1, 2]}, id=7), r"\$.id"),
        (body(input={"data": [1, 2]}, parameters={"binary_data_output": 1}), "true or false"),
        (
            body(
                input={"data": [1, 2]},
                outputs=[{"name": "y", "parameters": {"classification": -1}}],
            ),
            "output 'y': parameter 'classification'",
        ),
    ],
)
def test_wrong_parameters_are_named(data: bytes, text: str) -> None:
    with pytest.raises(ServeError, match=text):
        decode_request(data, True)


@pytest.mark.parametrize(
    "data",
    [
        body(input={"data": [1], "shape": [2**63]}),
        body(input={"data": [1], "shape": [10**400] * 12}),
        body(input={"parameters": {"binary_data_size": 2**63}}),
        body(input={"parameters": {"binary_data_size": 10**400}}),
    ],
)
def test_numbers_that_nobody_means_are_refused_in_few_words(data: bytes) -> None:
    with pytest.raises(ServeError) as caught:
        decode_request(data, True)
    assert caught.value.reason is Reason.BAD_INPUT
    assert len(caught.value.detail) < 500


@pytest.mark.parametrize(
    ("dims", "batched", "value", "shape"),
    [
        ((1, 1), False, "3", (1, 1)),
        ((1, 1), False, "[3]", (1, 1)),
        ((1, -1), False, "[3, 4, 5]", (1, 3)),
        ((1,), True, "[3, 4, 5]", (3, 1)),
        ((-1,), True, "[3, 4, 5]", (1, 3)),
        ((2, -1, 2, -1), True, "[1, 2, 3, 4, 5, 6, 7, 8]", (1, 2, 1, 2, 2)),
        ((2,), True, "[[1, 2], [3, 4]]", (2, 2)),
        ((1, -1), False, "[]", (1, 0)),
        ((2, 2), False, "[3, 4, 5]", None),
        ((1, 1), False, "[]", None),
    ],
)
def test_a_list_of_generate_fills_the_dims(
    dims: Any, batched: bool, value: str, shape: Any
) -> None:
    signature = Signature((TensorSpec("x", "INT32", dims),), (), batched, 8)
    try:
        (source,) = decode_generate(signature, f'{{"x": {value}}}'.encode()).sources
        assert source.shape == shape
    except ServeError as error:
        assert shape is None and f"of shape {[*dims]} needs" in error.detail
