"""Header blocks put together from HEADERS and CONTINUATION frames (RFC 9113, section 4.3)."""

from __future__ import annotations

from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.headers import CallHead, CallHeadDecoder
from interlace.server.grpc.http2_frames import PROTOCOL_ERROR, PeerError

#: A stream's number, its head, and whether the client sends nothing more on it.
OpenedHead = tuple[int, CallHead, bool]


class HeaderBlockReader:
    """Blocks of one connection. Between the frames of a block no other frame may come."""

    def __init__(self, max_header_bytes: int) -> None:
        self.inside = False  #: a block has begun and not ended
        self._max_header_bytes = max_header_bytes
        self._heads = CallHeadDecoder(max_header_bytes)
        self._block = bytearray()
        self._stream = 0
        self._ends = False

    def headers(self, flags: int, number: int, payload: bytes) -> OpenedHead | None:
        """A HEADERS frame; the head, if it is whole.

        Raises:
            PeerError: the frame or the block is malformed.
        """
        if flags & (h2.PADDED | h2.PRIORITISED):
            payload = _unwrapped(flags, payload)
        ends = bool(flags & h2.END_STREAM)
        if flags & h2.END_HEADERS:
            return number, self._heads.read(payload), ends
        self.inside = True
        self._block, self._stream, self._ends = bytearray(payload), number, ends
        return None

    def continuation(self, flags: int, number: int, payload: bytes) -> OpenedHead | None:
        """A CONTINUATION frame; the head, if this is its end.

        Raises:
            PeerError: it continues nothing, or the block is malformed or too long.
        """
        if not self.inside or number != self._stream:
            raise PeerError(PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block += payload
        if len(self._block) > self._max_header_bytes:
            raise PeerError(h2.ENHANCE_YOUR_CALM, f"header block of {len(self._block)} bytes")
        if not flags & h2.END_HEADERS:
            return None
        self.inside = False
        return number, self._heads.read(bytes(self._block)), self._ends


def _unwrapped(flags: int, payload: bytes) -> bytes:
    """A HEADERS payload without its padding and priority."""
    pad = 0
    if flags & h2.PADDED:
        if not payload:
            raise PeerError(h2.FRAME_SIZE_ERROR, "padded HEADERS without a length")
        pad, payload = payload[0], payload[1:]
    if flags & h2.PRIORITISED:
        if len(payload) < 5:
            raise PeerError(h2.FRAME_SIZE_ERROR, "HEADERS with a short priority")
        payload = payload[5:]
    if pad > len(payload):
        raise PeerError(PROTOCOL_ERROR, "more padding than payload")
    return payload[: len(payload) - pad]
