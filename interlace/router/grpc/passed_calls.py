"""Heads and trailers of calls to a node."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final
from urllib.parse import unquote

from interlace.server.errors import GrpcStatus
from interlace.server.grpc.headers import Pairs
from interlace.server.grpc.http2_frames import literal
from interlace.server.spans import TraceFields

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

    def block(
        self,
        path: str,
        budget_ms: float | None,
        waited_ms: float,
        trace: TraceFields,
        streams: bool = False,
    ) -> bytes:
        """The head of a call with ``budget_ms`` left, received ``waited_ms`` ago.

        The node ends one that ``streams`` with a status where it fails, not with a message.
        """
        block = self._rest + literal(":path", path) + self._plain
        if streams:
            block += literal("triton_grpc_error", "true")
        if budget_ms is not None:
            block += literal("grpc-timeout", f"{max(0, round(budget_ms * 1000.0))}u")
        if waited_ms:
            block += literal("interlace-elapsed-ms", f"{waited_ms:.3f}")
        for name, value in trace:
            block += literal(name, value)
        return block


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a node ended a call."""

    status: GrpcStatus = GrpcStatus.UNKNOWN
    text: str = ""
    retry_after_ms: float | None = None


def call_end(pairs: Pairs) -> CallEnd:
    """What the header fields of a node say, as if they ended the call."""
    fields = dict(pairs)
    return CallEnd(
        _STATUSES.get(fields.get(b"grpc-status", b""), GrpcStatus.UNKNOWN),
        unquote(fields.get(b"grpc-message", b"").decode("latin-1")),
        inf
        if b"interlace-final" in fields
        else _retry_after_ms(fields.get(b"retry-after-ms", b"")),
    )


def _retry_after_ms(text: bytes) -> float | None:
    """Return a time as a node writes it; ``None`` if it wrote none, or anything else."""
    digits = text.replace(b".", b"", 1)
    return float(text) if digits.isdigit() and len(digits) <= _RETRY_DIGITS else None
