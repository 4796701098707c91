"""Bounds on what one HTTP client, and all of them together, may use."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.server.http.routes import RouteKind

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds; each is refused or cut off, never exceeded."""

    connections: int = 1024
    probes: int = 32  #: connections beyond those, for health probes only
    head_bytes: int = 64 * KIB
    body_bytes: int = 256 * MIB  #: an inference body, as received and after decompression
    json_bytes: int = 16 * MIB  #: its JSON part; larger tensors belong in binary
    generate_bytes: int = 64 * KIB  #: a body of generate, decompressed too
    load_bytes: int = 256 * KIB  #: a body of a model load: the JSON of its configuration
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
            case RouteKind.GENERATE:
                return self.generate_bytes
            case RouteKind.INFER:
                return self.body_bytes if binary else self.json_bytes
