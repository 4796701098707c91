"""Bounds of the gRPC front-end, and the token buckets that hold callers to them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

#: Tensors of one request.
TENSORS_MAX: Final = 1024
#: Fields of one request: names, tensors, parameters.
FIELDS_MAX: Final = 4 * TENSORS_MAX


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What a gRPC server accepts. Nothing that a peer sends is kept without one of these bounds.

    ``max_heads_bytes`` bounds what one message may hold outside ``raw_input_contents`` (typed
    contents and compressed messages included): those bytes are kept on the heap, not in the arena.
    """

    max_message_bytes: int = 2**31 - 1
    max_heads_bytes: int = 16 << 20
    max_unpacked_bytes: int = 64 << 20
    max_heap_bytes: int = 256 << 20
    max_connections: int = 1024
    max_streams: int = 1024
    max_header_bytes: int = 16 << 10
    max_backlog_bytes: int = 4 << 20
    #: A connection that sends no preface, or stops inside a message or inside its answers.
    stall_timeout_ms: float = 30_000.0
    #: A message that comes slower than this stands still.
    min_bytes_per_s: float = 1024.0
    #: Frames of one connection that carry no call: pings, settings, empty DATA, heads in pieces,
    #: needless window updates; and calls that no method answers. The burst is 10 s.
    control_per_s: float = 1_000.0
    #: Streams of one connection that it resets, which costs us about as much as answering them.
    resets_per_s: float = 5_000.0
    #: A flooding client is cut off only after this time, so that it cannot come back at
    #: once; of so many connections at most, and those that come meanwhile begin with less burst.
    linger_s: float = 1.0
    max_lingering: int = 256


class TokenBucket:
    """``burst`` tokens, refilled at ``per_s``: what a well-behaved peer never empties.

    The first ``share`` of them is there at once.
    """

    __slots__ = ("_at_s", "_burst", "_left", "_per_s")

    def __init__(self, burst: float, per_s: float, share: float = 1.0) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst * share
        self._at_s = time.monotonic()

    def take(self, tokens: float = 1.0) -> bool:
        """Whether these tokens were there to take."""
        self._left -= tokens
        if self._left >= 0.0:
            return True
        now_s = time.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left >= 0.0
