"""Heads and trailers of calls to a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from hpack import Decoder, HPACKError

from interlace.server.errors import GrpcStatus
from interlace.server.grpc.headers import TableMark, literal
from interlace.server.limits import GenerationalCache

_BLOCKS_KEPT: Final = 256
_KEPT_BYTES: Final = 1024
#: As they are written; any other value is UNKNOWN, as gRPC has it.
_STATUSES: Final = {b"%d" % status: status for status in GrpcStatus}
_RETRY_DIGITS: Final = 9


class CallHeads:
    """Header blocks that open calls at one node; they need no state, and are made once."""

    def __init__(self, authority: str, key: str) -> None:
        self._rest = (
            b"\x83\x86"  # :method POST, :scheme http, from the static table (RFC 7541, appendix A)
            + literal(":authority", authority)
        )
        self._plain = (
            literal("content-type", "application/grpc")
            + literal("te", "trailers")
            + (literal("x-api-key", key) if key else b"")
        )

    def block(self, path: str, budget_ms: float | None, waited_ms: float) -> bytes:
        """The head of a call of which so much time is left, and that came so long ago."""
        block = self._rest + literal(":path", path) + self._plain
        if budget_ms is not None:
            block += literal("grpc-timeout", f"{max(0, round(budget_ms * 1000.0))}u")
        if waited_ms:
            block += literal("interlace-elapsed-ms", f"{waited_ms:.3f}")
        return block


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a node ended a call."""

    status: GrpcStatus = GrpcStatus.UNKNOWN
    text: str = ""
    retry_after_ms: float | None = None


class CallEnds:
    """Header blocks that a node sends, remembered as long as they change no table."""

    def __init__(self, max_header_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_header_bytes)
        self._known: GenerationalCache[bytes, CallEnd] = GenerationalCache(_BLOCKS_KEPT)

    def read(self, block: bytes) -> CallEnd:
        """What a block says, as if it ended the call.

        Raises:
            ValueError: it cannot be decoded.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        mark = TableMark(self._decoder)
        try:
            pairs = {bytes(n): bytes(v) for n, v in self._decoder.decode(block, raw=True)}
        except (HPACKError, IndexError) as error:
            raise ValueError(f"header block: {error}") from error
        text = unquote(pairs.get(b"grpc-message", b"").decode("latin-1"))
        found = CallEnd(
            _STATUSES.get(pairs.get(b"grpc-status", b""), GrpcStatus.UNKNOWN),
            text,
            _retry_after_ms(pairs.get(b"retry-after-ms", b"")),
        )
        if mark.unchanged and len(block) <= _KEPT_BYTES:
            self._known.put(block, found)
        return found


def _retry_after_ms(text: bytes) -> float | None:
    """Return a time as a node writes it; ``None`` if it wrote none, or anything else."""
    digits = text.replace(b".", b"", 1)
    return float(text) if digits.isdigit() and len(digits) <= _RETRY_DIGITS else None
