"""Messages gathered on the heap: compressed ones, and those of administrative methods."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.heap_budget import HeapBudget, HeapReservation

#: zlib's window argument for each encoding of gRPC ("deflate" has zlib's own wrapping).
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class BufferedSink:
    """A message kept until it is whole, then handed to ``done``; ``failed`` gets why it is not."""

    def __init__(
        self,
        limit_bytes: int,
        budget: HeapBudget,
        done: Callable[[memoryview], None],
        failed: Callable[[ServeError], None],
        encoding: str = "",
    ) -> None:
        """``limit_bytes`` bounds the message, also decompressed; ``encoding`` is what it
        is compressed with, empty if it is not."""
        self._limit_bytes = limit_bytes
        self._reserved = HeapReservation(budget)
        self._done = done
        self._failed = failed
        self._encoding = encoding
        self._data: bytearray | None = bytearray()

    def feed(self, chunk: memoryview) -> None:
        """Keep a piece."""
        if self._data is None:
            return
        try:
            nbytes = len(self._data) + len(chunk)
            if nbytes > self._limit_bytes:
                raise _too_large(self._limit_bytes)
            self._reserved.resize(nbytes)
        except ServeError as error:
            self.abandon()
            self._failed(error)
            return
        self._data += chunk

    def landing(self) -> memoryview | None:
        """Nowhere: it goes to the heap."""
        return None

    def landed(self, nbytes: int) -> None:
        """Never called, for want of a landing."""
        raise AssertionError(f"{nbytes} bytes landed nowhere")

    def finish(self) -> None:
        """Hand it on, decompressed if it was compressed."""
        if self._data is None:
            return
        data = bytes(self._data)
        self.abandon()
        try:
            if self._encoding:
                data = inflated(data, self._encoding, self._limit_bytes)
        except ServeError as error:
            self._failed(error)
            return
        self._done(memoryview(data))

    def abandon(self) -> None:
        """Let go of it."""
        self._reserved.release()
        self._data = None


def inflated(data: bytes, encoding: str, limit_bytes: int) -> bytes:
    """A compressed message as it was.

    Raises:
        ServeError: it is no such thing, or larger than the limit.
    """
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise ServeError(
            Reason.BAD_INPUT, f"a message is marked compressed, but grpc-encoding is '{encoding}'"
        )
    unpacker = zlib.decompressobj(bits)
    try:
        plain = unpacker.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise ServeError(Reason.BAD_INPUT, f"the message is not {encoding}: {error}") from error
    if len(plain) > limit_bytes:
        raise _too_large(limit_bytes)
    if not unpacker.eof:
        raise ServeError(Reason.BAD_INPUT, f"the {encoding} message is cut off")
    return plain


def _too_large(limit_bytes: int) -> ServeError:
    return ServeError(
        Reason.TOO_LARGE, f"a compressed or administrative message is over {limit_bytes} bytes"
    )
