"""Chunked bodies, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import ServeError
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.chunked_coding import ChunkedBody
from interlace.server.http.responses import HttpError


def encoded(chunks: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    parts = [b"%X%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks if c]
    return b"".join([*parts, b"0\r\n", trailer, b"\r\n"])


def feed(body: ChunkedBody, data: bytes, cuts: list[int]) -> bytes:
    """What is left over after the body."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        piece = bytearray(data[start:stop])
        used = body.take(piece, 0, len(piece))
        if body.done:
            return bytes(piece[used:]) + data[stop:]
        assert used == len(piece)
    return b""


@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.sampled_from([b"", b";name=value", b' ; q="x"']),
    st.sampled_from([b"", b"Checksum: 1\r\n"]),
    st.binary(max_size=10),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_any_cut_gives_the_same_body(
    chunks: list[bytes], extension: bytes, trailer: bytes, after: bytes, cuts: list[int]
) -> None:
    body = ChunkedBody(10_000, HeapBudget(1 << 20))
    left = feed(body, encoded(chunks, extension, trailer) + after, cuts)
    assert body.done
    assert bytes(body.data) == b"".join(chunks)
    assert left == after


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_any_bytes_are_taken_or_refused(data: bytes, cuts: list[int]) -> None:
    body = ChunkedBody(100, HeapBudget(1 << 20))
    try:
        feed(body, data, cuts)
    except (HttpError, ServeError):
        return
    assert len(body.data) <= 100


@pytest.mark.parametrize(
    "data",
    [
     b"g\r\n", b"\r\n", b" 5\r\n", b"0x5\r\n", b"+5\r\n", b"5\n", b"5;\x00\r\n",
     b"1" * 17 + b"\r\n", b"1\r\nab\r\n", b"1\r\na\n", b"0\r\n" + b"a: b\r\n" * 65,
     b"0\r\n" + b"a" * 5000,
    ],
)  # fmt: skip
def test_broken_framing_is_refused(data: bytes) -> None:
    with pytest.raises(HttpError):
        feed(ChunkedBody(100, HeapBudget(1 << 20)), data, [])


def test_the_limit_holds_before_the_bytes_come() -> None:
    with pytest.raises(ServeError, match="limit of 100 bytes"):
        feed(ChunkedBody(100, HeapBudget(1 << 20)), b"65\r\n", [])
