"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from interlace.core.byte_sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("512MB", 512_000_000), ("1.5 GiB", 3 << 29), (" 2k ", 2000), ("1TiB", 1 << 40)],
)
def test_units_are_decimal_or_binary(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "2 apples", "GB", "9e9", "99999999999TB"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)
