"""BYTES tensors there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.device.cpu.inputs import pack_strings, unpack_strings

ROWS = st.lists(st.lists(st.binary(max_size=20), min_size=2, max_size=2), max_size=5)


@given(ROWS, st.integers(0, 5))
def test_packing_and_unpacking_are_inverse(rows: list[list[bytes]], cut: int) -> None:
    array = np.empty((len(rows), 2), object)
    for place, row in enumerate(rows):
        array[place] = row
    parts = [memoryview(pack_strings(part)) for part in (array[:cut], array[cut:])]
    assert unpack_strings(parts, array.shape, "x").tolist() == array.tolist()


@given(st.binary(max_size=30))
def test_any_bytes_unpack_or_are_refused(data: bytes) -> None:
    try:
        array = unpack_strings([memoryview(data)], (1,), "x")
    except ValueError as error:
        assert "BYTES input 'x'" in str(error)
    else:
        assert array.shape == (1,)


def test_the_form_is_that_of_the_protocol() -> None:
    assert pack_strings(np.array([b"ab", ""], object)) == b"\2\0\0\0ab\0\0\0\0"


def test_text_is_sent_as_utf_8() -> None:
    assert pack_strings(np.array(["ü"])) == b"\2\0\0\0\xc3\xbc"


def test_too_few_elements_are_named() -> None:
    with pytest.raises(ValueError, match=r"has 0 elements, its shape \[2\] needs 2"):
        unpack_strings([memoryview(b"")], (2,), "x")
