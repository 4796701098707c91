"""gzip and deflate of bodies, bounded in what they unpack to."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from interlace.core.errors import Reason, ServeError

#: Fast rather than small: replies are numbers, which pack badly at any level.
LEVEL: Final = 1
_GZIP_BITS: Final = 31
_ZLIB_BITS: Final = 15


def unpack(body: bytes | bytearray, coding: str, limit_bytes: int) -> bytes:
    """A body as it was before ``coding`` (``gzip`` or ``deflate``, which is zlib's format).

    Raises:
        ServeError: not of that coding, cut off, or larger than the limit.
    """
    inflater = zlib.decompressobj(_GZIP_BITS if coding == "gzip" else _ZLIB_BITS)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise ServeError(Reason.BAD_INPUT, f"the body is not {coding}: {error}") from error
    if len(plain) > limit_bytes:
        raise ServeError(
            Reason.TOO_LARGE, f"the body unpacks to more than the limit of {limit_bytes} bytes"
        )
    if not inflater.eof:
        raise ServeError(Reason.BAD_INPUT, f"the {coding} body is cut off")
    if inflater.unused_data:
        raise ServeError(
            Reason.BAD_INPUT, f"{len(inflater.unused_data)} bytes follow the {coding} body"
        )
    return plain


def pack(parts: Iterable[bytes | memoryview], coding: str) -> bytes:
    """All parts as one packed body."""
    deflater = zlib.compressobj(LEVEL, wbits=_GZIP_BITS if coding == "gzip" else _ZLIB_BITS)
    return b"".join([*(deflater.compress(part) for part in parts), deflater.flush()])
