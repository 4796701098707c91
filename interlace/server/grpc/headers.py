"""Header blocks: what a call's head says, and the heads and trailers of answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from hpack import Decoder, HPACKError, OversizedHeaderListError

from interlace.server.api_keys import given_key
from interlace.server.errors import GrpcStatus
from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.http2_frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    PeerError,
    literal,
)
from interlace.server.spans import TraceFields, trace_fields

Pairs = list[tuple[bytes, bytes]]
Meaning = TypeVar("Meaning")
ENCODINGS: Final = ("identity", "deflate", "gzip")
_CACHED_BLOCKS: Final = 64
_CACHED_BLOCK_BYTES: Final = 1024
#: Changes of the dynamic table's size that may stand before a head (RFC 7541, section 4.2).
_SIZE_UPDATES_MAX: Final = 2
_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])\Z")
_UNIT_MS: Final = {b"H": 3.6e6, b"M": 6e4, b"S": 1e3, b"m": 1.0, b"u": 1e-3, b"n": 1e-6}
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the head of a call says.

    ``budget_ms`` is the deadline that the caller gave, from now; ``elapsed_ms`` is how long the
    call has been on its way through a router; ``trace`` names the caller's span; ``key`` is its API
    key. ``refusal`` says why it cannot be a call of gRPC, if so (then ``http_status`` is not 200).
    ``malformed`` heads break HTTP/2's own rules: their stream is reset.
    """

    path: str = ""
    budget_ms: float | None = None
    elapsed_ms: float = 0.0
    trace: TraceFields = ()
    encoding: str = "identity"
    key: bytes = b""
    status_errors: bool = False  #: stream errors as gRPC statuses (``triton_grpc_error: true``)
    http_status: int = 200
    refusal: str = ""
    malformed: bool = False


class HeaderBlocks(Generic[Meaning]):
    """Header blocks of one connection, by what they mean.

    HPACK has state per connection: the dynamic table. While no block changes it, equal blocks mean
    the same. Peers send few distinct blocks, so their meanings are kept until the table changes.
    """

    def __init__(self, max_header_bytes: int, understand: Callable[[Pairs], Meaning]) -> None:
        """``understand`` says what decoded pairs mean."""
        self._decoder = Decoder(max_header_list_size=max_header_bytes)
        self._understand = understand
        self._known: dict[bytes, Meaning] = {}

    def read(self, block: bytes) -> Meaning:
        """The meaning of a complete header block.

        Raises:
            PeerError: the block cannot be decoded, or is too long when it is.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        if _size_updates(block) > _SIZE_UPDATES_MAX:
            text = f"header block: more than {_SIZE_UPDATES_MAX} changes of the table's size"
            raise PeerError(COMPRESSION_ERROR, text)
        newest, size = self._newest_entry(), self._decoder.header_table.maxsize
        try:
            pairs = [(bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise PeerError(ENHANCE_YOUR_CALM, str(error)) from error
        except (HPACKError, IndexError, ValueError) as error:
            raise PeerError(COMPRESSION_ERROR, f"header block: {error}") from error
        found = self._understand(pairs)
        same = self._newest_entry() is newest and self._decoder.header_table.maxsize == size
        if not same or len(self._known) >= _CACHED_BLOCKS:
            self._known.clear()
        if same and len(block) <= _CACHED_BLOCK_BYTES:
            self._known[block] = found
        return found

    def _newest_entry(self) -> object:
        """The last entry of the dynamic table: a new object whenever one is added."""
        return next(iter(self._decoder.header_table.dynamic_entries), None)


def _size_updates(block: bytes) -> int:
    """How many changes of the table's size a block begins with; counts to one above the limit."""
    at = count = 0
    while at < len(block) and block[at] & 0xE0 == 0x20 and count <= _SIZE_UPDATES_MAX:
        count += 1
        more = block[at] & 0x1F == 0x1F  # the size goes on in the next bytes, to one below 128
        at += 1
        while more and at < len(block):
            more = block[at] >= 0x80
            at += 1
    return count


def read_head(pairs: Pairs) -> CallHead:
    """What decoded header pairs say of the call that they open."""
    pseudo: dict[bytes, bytes] = {}
    plain: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name.startswith(b":"):
            if plain or name in pseudo or name not in _PSEUDO:
                return CallHead(malformed=True)
            pseudo[name] = value
        elif name != name.lower() or name == b"connection":
            return CallHead(malformed=True)
        elif name == b"tracestate" and name in plain:
            plain[name] += b"," + value
        else:
            plain[name] = value
    if b":method" not in pseudo or b":path" not in pseudo or b":scheme" not in pseudo:
        return CallHead(malformed=True)
    return _grpc_head(pseudo, plain)


def _grpc_head(pseudo: Mapping[bytes, bytes], plain: Mapping[bytes, bytes]) -> CallHead:
    if pseudo[b":method"] != b"POST":
        return CallHead(http_status=405, refusal="gRPC calls are POST")
    content = plain.get(b"content-type", b"")
    if not re.match(rb"application/grpc(\+proto)?(;|\Z)", content):
        return CallHead(http_status=415, refusal="content-type must be application/grpc")
    budget_ms = None
    if b"grpc-timeout" in plain:
        found = _TIMEOUT.match(plain[b"grpc-timeout"])
        if found is None:
            return CallHead(http_status=400, refusal="grpc-timeout is not digits and a unit")
        budget_ms = int(found[1]) * _UNIT_MS[found[2]]
    elapsed = plain.get(b"interlace-elapsed-ms", b"0")
    if not re.fullmatch(rb"\d{1,9}(\.\d{1,6})?", elapsed):
        return CallHead(http_status=400, refusal="interlace-elapsed-ms is not milliseconds")
    return CallHead(
        path=pseudo[b":path"].decode("latin-1"),
        budget_ms=budget_ms,
        elapsed_ms=float(elapsed),
        trace=trace_fields(plain),
        encoding=plain.get(b"grpc-encoding", b"identity").decode("latin-1"),
        key=given_key(plain.get(b"x-api-key", b""), plain.get(b"authorization", b"")),
        status_errors=plain.get(b"triton_grpc_error", b"").lower() == b"true",
    )


_STATUS_200: Final = b"\x88"
#: The head of every answer that has messages.
ANSWER_HEAD: Final = (
    _STATUS_200
    + literal("content-type", "application/grpc")
    + literal("grpc-accept-encoding", ",".join(ENCODINGS))
)
TRAILERS_OK: Final = literal("grpc-status", "0")


def trailers(status: GrpcStatus, text: str, retry_after_ms: float | None = None) -> bytes:
    """The block that ends an answer; ``text`` is percent-encoded as gRPC asks and cut at 4 KiB."""
    block = literal("grpc-status", str(int(status)))
    if text:
        block += literal("grpc-message", _PARTIAL.sub("", quote(text, safe=_SAFE)[:_TEXT_LIMIT]))
    if retry_after_ms == math.inf:
        block += literal("interlace-final", "1")
    elif retry_after_ms is not None:
        block += literal("retry-after-ms", str(max(0, round(retry_after_ms))))
    return block


#: Half an escape, where a long text was cut.
_PARTIAL: Final = re.compile(r"%.?\Z")
_TEXT_LIMIT: Final = 4096
_SAFE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def plain_refusal(http_status: int, text: str) -> bytes:
    """The block that answers what is no gRPC call."""
    return (
        literal(":status", str(http_status))
        + literal("content-type", "application/grpc")
        + trailers(GrpcStatus.UNKNOWN, text)
    )


#: A stream's number, its head, and whether the client sends nothing more on it.
OpenedHead = tuple[int, CallHead, bool]


class HeaderBlockReader:
    """Blocks of one connection. Between the frames of a block no other frame may come."""

    def __init__(self, max_header_bytes: int) -> None:
        self.inside = False  #: a block has begun and not ended
        self._max_header_bytes = max_header_bytes
        self._heads = HeaderBlocks(max_header_bytes, read_head)
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
