"""Everything that connects a router with one node."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.node import Node
from interlace.router.grpc.node_channel import NodeChannel
from interlace.router.http.node_connections import NodeConnections
from interlace.server.heap_budget import HeapBudget
from interlace.server.tls import GRPC, HTTP, NO_TLS, TlsFiles


class NodeLinks:
    """HTTP and gRPC to one node.

    ``sent`` counts requests that were passed on, ``lost`` those of them that it did not answer.
    ``answered`` is called whenever it has answered one, and its answer is on its way.
    """

    def __init__(self, node: Node, key: str, budget: HeapBudget, tls: TlsFiles = NO_TLS) -> None:
        """``key`` is the API key that nodes ask for, "" for none; ``budget`` bounds replies.

        With an authority in ``tls`` both speak TLS.
        """
        self.node = node.name
        self.http = NodeConnections(node, budget, tls.client(HTTP) if tls.ca else None)
        self.grpc = NodeChannel(node, key, budget, tls.client(GRPC) if tls.ca else None)
        self.sent = self.lost = 0
        self.answered: Callable[[], None] = _nothing

    @property
    def in_flight(self) -> int:
        """Requests that have no reply yet, the router's own questions included."""
        return self.http.in_flight + self.grpc.in_flight

    def fail_all(self, why: str, hopeless: bool = False) -> None:
        """Give up every request that is there, or the ``hopeless``: those that wait no longer."""
        self.http.fail_all(why, hopeless)
        self.grpc.fail_all(why, hopeless)

    def close_idle(self) -> None:
        """Close connections that have not been used for long."""
        self.http.close_idle()

    def close(self) -> None:
        """Close every connection; nothing is in flight."""
        self.http.close_idle(0.0)
        self.grpc.close()


def _nothing() -> None:
    """Nobody wants to know."""
