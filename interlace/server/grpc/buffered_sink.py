"""Messages gathered on the heap: compressed ones, and those of administrative methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.compression import unpack_small, unpacked
from interlace.server.grpc.stream import GrpcStream
from interlace.server.limits import HeapBudget, HeapReservation

#: Unpacked on the event loop, packed and plain.
_HERE_BYTES: Final = 64 << 10
_ENCODINGS: Final = ("gzip", "deflate")
#: One message at a time: zlib lets go of the interpreter's lock, but not of the core.
_UNPACKER: Final = ThreadPoolExecutor(1, "interlace-unpack")


class BufferedSink:
    """A message kept until it is whole, then handed to ``done``; ``failed`` gets why it is not.

    Whoever is called may keep the message. A compressed one is unpacked in a thread; meanwhile the
    ``stream`` is held, so that its end comes after the message.
    """

    def __init__(
        self,
        limit_bytes: int,
        budget: HeapBudget,
        done: Callable[[memoryview], None],
        failed: Callable[[ServeError], None],
        stream: GrpcStream | None = None,
    ) -> None:
        """``limit_bytes`` bounds the message, also unpacked; ``stream`` if it is compressed."""
        self._limit_bytes = limit_bytes
        self._reserved = HeapReservation(budget)
        self._done = done
        self._failed = failed
        self._stream = stream
        self._data: bytearray | None = bytearray()

    def feed(self, chunk: memoryview) -> None:
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
        return None  # it goes to the heap

    def landed(self, nbytes: int) -> None:
        raise AssertionError(f"{nbytes} bytes landed nowhere")

    def finish(self) -> None:
        """Hand it on, unpacked if it was compressed."""
        data, self._data = self._data, None
        if data is None:
            return
        stream = self._stream
        try:
            plain = data if stream is None else self._unpacked_here(data, stream.head.encoding)
        except ServeError as error:
            self._reserved.release()
            self._failed(error)
            return
        if plain is not None:
            self._reserved.release()
            self._done(memoryview(plain))
        elif stream is not None:
            stream.hold()
            task = asyncio.get_running_loop().create_task(self._unpack(stream, data))
            stream.unpacking.add(task)
            task.add_done_callback(stream.unpacking.discard)

    def _unpacked_here(self, packed: bytearray, encoding: str) -> bytes | None:
        """Return a small message unpacked; ``None`` if that may take long."""
        if encoding not in _ENCODINGS:
            text = f"a message is marked compressed, but grpc-encoding is '{encoding}'"
            raise ServeError(Reason.BAD_INPUT, text)
        if len(packed) > _HERE_BYTES:
            return None
        return unpack_small(packed, encoding, min(_HERE_BYTES, self._limit_bytes))

    def abandon(self) -> None:
        self._reserved.release()
        self._data = None

    async def _unpack(self, stream: GrpcStream, packed: bytearray) -> None:
        """Unpack piece by piece, as long as somebody wants it and there is room."""
        loop = asyncio.get_running_loop()
        pieces = unpacked(memoryview(packed), stream.head.encoding)
        plain, error = bytearray(), None
        try:
            while piece := await loop.run_in_executor(_UNPACKER, _next, pieces):
                if stream.call is None:
                    return
                if len(plain) + len(piece) > self._limit_bytes:
                    raise _too_large(self._limit_bytes)
                self._reserved.resize(len(packed) + len(plain) + len(piece))
                plain += piece
        except ServeError as refused:
            error = refused
        finally:
            self._reserved.release()
        if stream.call is None:
            return
        if error is None:
            self._done(memoryview(plain))
        else:
            self._failed(error)
        stream.go_on()


def _next(pieces: Iterator[bytes]) -> bytes:
    """Return the next piece that has a byte; none at the end."""
    return next(filter(None, pieces), b"")


def _too_large(limit_bytes: int) -> ServeError:
    return ServeError(
        Reason.TOO_LARGE, f"a compressed or administrative message is over {limit_bytes} bytes"
    )
