"""gzip and deflate of bodies, bounded in what they unpack to."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from interlace.core.errors import Reason, ServeError, bad_input

#: Fast rather than small: replies are numbers, which pack badly at any level.
LEVEL: Final = 1
_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15
_PIECE_BYTES: Final = 256 * 1024


def unpack_small(body: bytes | bytearray, coding: str, limit_bytes: int) -> bytes | None:
    """A body as it was before ``coding`` (``gzip`` or ``deflate``, which is zlib's format).

    ``None`` if that is more than the limit; no more than that is unpacked to find out.

    Raises:
        ServeError: not of that coding, or cut off.
    """
    inflater = zlib.decompressobj(_GZIP_BITS if coding == "gzip" else _ZLIB_BITS)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise bad_input(f"the body is not {coding}: {error}") from error
    if len(plain) > limit_bytes:
        return None
    _check_end(inflater, coding)
    return plain


def unpack_within(body: bytes | bytearray, coding: str, limit_bytes: int) -> bytes:
    """The same, where no larger body is taken.

    Raises:
        ServeError: not of that coding, cut off, or larger.
    """
    plain = unpack_small(body, coding, limit_bytes)
    if plain is None:
        text = f"the body unpacks to more than the limit of {limit_bytes} bytes"
        raise ServeError(Reason.TOO_LARGE, text)
    return plain


def unpack_into(body: memoryview, coding: str, target: memoryview) -> int | None:
    """Unpack a body to where it stays; its size there, or ``None`` if there is no room for it.

    Raises:
        ServeError: not of that coding, or cut off.
    """
    at = 0
    for piece in unpacked(body, coding):
        if at + len(piece) > len(target):
            return None
        target[at : at + len(piece)] = piece
        at += len(piece)
    return at


def unpacked(body: memoryview, coding: str) -> Iterator[bytes]:
    """Yield a body as it was before ``coding``, in pieces of ``_PIECE_BYTES`` at most.

    Raises:
        ServeError: not of that coding, or cut off.
    """
    inflater = zlib.decompressobj(_GZIP_BITS if coding == "gzip" else _ZLIB_BITS)
    left = body
    try:
        while not inflater.eof:
            packed: memoryview | bytes = inflater.unconsumed_tail
            if not packed:
                packed, left = left[:_PIECE_BYTES], left[_PIECE_BYTES:]
            piece = inflater.decompress(packed, _PIECE_BYTES)
            if not packed and not piece:
                break
            yield piece
    except zlib.error as error:
        raise bad_input(f"the body is not {coding}: {error}") from error
    _check_end(inflater, coding, len(left))


def _check_end(inflater: zlib._Decompress, coding: str, left: int = 0) -> None:
    if not inflater.eof:
        raise bad_input(f"the {coding} body is cut off")
    left += len(inflater.unused_data)
    if left:
        raise bad_input(f"{left} bytes follow the {coding} body")


def pack(parts: Iterable[bytes | memoryview], coding: str) -> bytes:
    """All parts as one packed body."""
    deflater = zlib.compressobj(LEVEL, wbits=_GZIP_BITS if coding == "gzip" else _ZLIB_BITS)
    return b"".join([*(deflater.compress(part) for part in parts), deflater.flush()])
