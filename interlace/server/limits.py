"""Bounds of the front-ends, and what holds callers to them: token buckets, budgets, a cache."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from interlace.core.errors import Reason, ServeError

KIB = 1024
MIB = 1024 * KIB


class RouteKind(IntEnum):
    """What a route does with the body. An integer, because that hashes fast."""

    ADMIN = 0  #: small JSON, answered at once
    LOAD = 1  #: JSON that may carry model files
    INFER = 2  #: tensors
    GENERATE = 3  #: tensors as plain JSON values
    PLAN = 4  #: JSON of what a node is to serve


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds; each is refused or cut off, never exceeded."""

    connections: int = 1024
    probes: int = 32  #: connections beyond those, for health probes only
    head_bytes: int = 64 * KIB
    body_bytes: int = 256 * MIB  #: an inference body, as received and after decompression
    json_bytes: int = 16 * MIB  #: its JSON part; larger tensors belong in binary
    load_bytes: int = 64 * MIB  #: a body of a model load: JSON with its files in base64
    plan_bytes: int = 4 * MIB  #: a node's part of a fleet's plan: 120 bytes or so a model
    admin_bytes: int = 64 * KIB  #: any other body
    here_bytes: int = 64 * KIB  #: JSON and unpacked bodies up to this size are decoded on the loop
    heap_bytes: int = 512 * MIB  #: chunked and unpacked bodies, of all connections together
    head_s: float = 10.0  #: from the first byte of a head to its last
    body_idle_s: float = 30.0  #: without a byte of an announced body
    body_s: float = 300.0  #: from the first byte of a body to its last
    body_bytes_per_s: int = 16 * KIB  #: slower than this on average, beyond ``body_idle_s``
    idle_s: float = 120.0  #: between requests
    send_idle_s: float = 60.0  #: without the client taking a byte of its reply
    linger_s: float = 2.0  #: to read what a refused client still sends, so that it sees why
    sweep_s: float = 0.5  #: how often the times above are looked at

    def of_body(self, kind: RouteKind, binary: bool) -> int:
        """The largest body of a request; ``binary`` if it need not all be JSON."""
        match kind:
            case RouteKind.ADMIN:
                return self.admin_bytes
            case RouteKind.LOAD:
                return self.load_bytes
            case RouteKind.PLAN:
                return self.plan_bytes
            case RouteKind.INFER | RouteKind.GENERATE:
                return self.body_bytes if binary else self.json_bytes


#: The files of one load of a model.
FILES_BYTES: Final = 256 * MIB
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


class RefusalBucket(TokenBucket):
    """Calls that may be refused in a second before their connections are left unread for a while.

    Callers that call again at once take the cores from the models, which then are slower, and more
    is refused: ``per_s`` refusals are a twelfth of a core. ``most_s`` is short, since other callers
    may share a connection.
    """

    __slots__ = ("_most_s",)

    def __init__(self, per_s: float = 5_000.0, most_s: float = 0.05) -> None:
        super().__init__(per_s / 10.0, per_s)
        self._most_s = most_s

    def rest_s(self, refused: int = 1) -> float:
        """Enter calls that were refused; how long their connection rests for it, in seconds."""
        if self.take(refused):
            return 0.0
        return min(self._most_s, -self._left / self._per_s)


class HeapBudget:
    """Bytes that requests hold outside of the arena, ``limit_bytes`` at most."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class HeapReservation:
    """What one request holds of a budget; ``release`` gives it back, once."""

    __slots__ = ("_budget", "nbytes")

    def __init__(self, budget: HeapBudget) -> None:
        self._budget = budget
        self.nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Hold that many bytes instead of those held so far.

        Raises:
            ServeError: OVERLOADED; what was held before is held still.
        """
        budget = self._budget
        used_bytes = budget.used_bytes + nbytes - self.nbytes
        if used_bytes > budget.limit_bytes:
            raise ServeError(
                Reason.OVERLOADED,
                f"unfinished requests hold {budget.used_bytes} of {budget.limit_bytes} bytes of "
                f"memory already",
                retry_after_ms=1000.0,
            )
        budget.used_bytes = used_bytes
        self.nbytes = nbytes

    def release(self) -> None:
        """Hold nothing any more."""
        self._budget.used_bytes -= self.nbytes
        self.nbytes = 0


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class GenerationalCache(Generic[Key, Value]):
    """At most ``2 * limit`` entries in two generations.

    A full young generation becomes the old one, and the old one is dropped; what is still asked
    for moves back into the young. So a flood of keys seen once never evicts the keys in use.
    """

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._old: dict[Key, Value] = {}
        self._young: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """An entry of either generation, kept from now on."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        if len(self._young) >= self._limit:
            self._old = self._young
            self._young = {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
