"""Synthetic inputs have the stated sizes, the right length, and safe contents."""

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.tensor import BYTES, ITEM_BYTES, Signature, TensorSpec
from interlace.formats.arrays import WORD, hinted, sample_shape
from interlace.profiling.samples import content
from tests.profiling.fakes import make_model


@given(
    datatype=st.sampled_from([*ITEM_BYTES, BYTES]),
    shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    seed=st.integers(0, 9),
)
def test_content_fills_its_shape(datatype: str, shape: tuple[int, ...], seed: int) -> None:
    spec = TensorSpec("x", datatype, shape)
    assert len(content(spec, shape, seed)) == ITEM_BYTES.get(datatype, 4 + len(WORD)) * prod(shape)


def test_integers_are_valid_in_any_vocabulary() -> None:
    ids = np.frombuffer(content(TensorSpec("input_ids", "INT64", (64,)), (64,), 0), np.int64)
    assert set(ids) <= {0, 1}
    mask = np.frombuffer(content(TensorSpec("attention_mask", "INT64", (9,)), (9,), 0), np.int64)
    assert set(mask) == {1}
    types = np.frombuffer(content(TensorSpec("token_type_ids", "INT32", (9,)), (9,), 0), np.int32)
    assert set(types) == {0}


def test_floats_are_in_the_unit_interval_in_every_width() -> None:
    for datatype, dtype in (("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64)):
        values = np.frombuffer(content(TensorSpec("x", datatype, (99,)), (99,), 1), dtype)
        assert values.min() >= 0.0
        assert values.max() <= 1.0
        assert values.std() > 0.1
    halves = np.frombuffer(content(TensorSpec("x", "BF16", (99,)), (99,), 1), np.uint16)
    widened = (halves.astype(np.uint32) << 16).view(np.float32)
    assert 0.0 <= widened.min() <= widened.max() <= 1.0


def test_bytes_elements_carry_their_length() -> None:
    data = content(TensorSpec("text", BYTES, (2,)), (2,), 0)
    length = int.from_bytes(data[:4], "little")
    assert len(data) == 2 * (4 + length)


def test_free_dims_take_the_stated_sizes() -> None:
    spec = TensorSpec("x", "FP32", (3, -1, -1))
    assert sample_shape(spec, {"x": (3, 32, 64)}) == (3, 32, 64)
    assert sample_shape(spec, {"x": (32, 64)}) == (3, 32, 64)
    assert sample_shape(TensorSpec("y", "FP32", (3, 4)), {}) == (3, 4)
    assert sample_shape(TensorSpec("y", "FP32", (-1, 2, -1, -1)), {}) == (64, 2, 64, 64)
    assert sample_shape(TensorSpec("y", "FP32", (-1,) * 5), {}) == (8,) * 5  # 64: 4 GB


def test_a_free_dim_without_a_size_is_moderate() -> None:
    assert sample_shape(TensorSpec("x", "FP32", (3, -1)), {}) == (3, 64)


@pytest.mark.parametrize(
    ("datatype", "dims", "wanted"),
    [("INT64", (2,), [1, 6]), ("FP32", (1,), [6]), ("INT64", (3,), [1, 1, 1]), ("BYTES", (2,), [])],
)
def test_a_name_of_sizes_suggests_those_of_another_input(
    datatype: str, dims: tuple[int, ...], wanted: list[int]
) -> None:
    spec = TensorSpec("new_shape", datatype, dims)
    signature = Signature((TensorSpec("x", "FP32", (1, 6)), spec), (), False, 1)
    found = hinted(spec, dims, make_model(), signature)
    assert (json.loads(found.text) if found else []) == wanted
    assert hinted(TensorSpec("x1", datatype, dims), dims, make_model(), signature) is None
