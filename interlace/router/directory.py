"""What the transports of a router know of the nodes: whom to ask, and over which connections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node, NodeState
from interlace.router.grpc.node_channel import NodeChannel
from interlace.router.http.node_connections import NodeConnections
from interlace.routing.routes import Routes
from interlace.runtime.clock import Clock
from interlace.server.limits import HeapBudget
from interlace.server.spans import RouterSpans
from interlace.server.statistics import MetricsPage
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


#: How long a node that left may take for what it has.
_LEAVE_MS: Final = 30_000.0
_FAMILIES: Final = (
    ("interlace_router_requests_total", "counter", "Requests sent to the node"),
    ("interlace_router_lost_total", "counter", "Requests that the node did not answer"),
    ("interlace_router_in_flight", "gauge", "Requests at the node now"),
    ("interlace_router_silent_ms", "gauge", "Time since the node last reported in ms"),
)


class NodeDirectory:
    """The nodes as ``routing`` believes them to be, with the links to each.

    ``budget`` bounds the replies of all nodes that are received in more than one piece.
    """

    def __init__(
        self,
        routes: Routes,
        clock: Clock,
        budget: HeapBudget,
        key: str = "",
        tls: TlsFiles = NO_TLS,
        spans: RouterSpans | None = None,
    ) -> None:
        """``key`` is the API key that nodes ask for; they speak TLS if ``tls`` has an authority.

        ``spans`` makes a span of each request, if there are any to be made.
        """
        self._key, self._tls = key, tls
        self.spans = spans
        self.routes = routes
        self.now_ms = clock.now_ms
        self._budget = budget
        self._links: dict[str, NodeLinks] = {}
        self._leaving: list[tuple[NodeLinks, float]] = []  #: and until when they may answer

    @property
    def nodes(self) -> list[Node]:
        """All that are known, heard of or not."""
        return [believed.node for believed in self.routes.nodes]

    def follow(self, nodes: Iterable[Node]) -> None:
        """Know these nodes and no others. Those that are gone answer what they have, in time."""
        new, gone = self.routes.follow(nodes)
        give_up_ms = self.now_ms() + _LEAVE_MS
        self._leaving += [(self._links.pop(node.name), give_up_ms) for node in gone]
        for node in new:
            self._links[node.name] = NodeLinks(node, self._key, self._budget, self._tls)

    def heard(self, node: str, state: NodeState) -> None:
        """Take what a node said of itself."""
        self.routes.heard(node, state, self.now_ms())

    def heard_lately(self) -> set[str]:
        """Nodes that are not lost."""
        return {believed.node.name for believed in self.routes.present(self.now_ms())}

    def heard_ms(self) -> dict[str, float]:
        """When each node that was ever heard said something last."""
        heard = {believed.node.name: believed.heard_ms for believed in self.routes.nodes}
        return {name: at_ms for name, at_ms in heard.items() if at_ms > -inf}

    def refusing(self) -> set[str]:
        """Nodes whose machine said at the last try that nobody listens there."""
        return {name for name, links in self._links.items() if links.http.refused}

    def look(self, late_ms: float = 0.0) -> None:
        """Give up what lost nodes have and others may answer, and connections idle for long.

        ``late_ms`` is by how much later than it was to be this is called.
        """
        self.routes.stalled(late_ms)
        now_ms = self.now_ms()
        for believed in self.routes.silent(now_ms):
            silent_ms = now_ms - believed.heard_ms
            why = f"silent for {silent_ms:.0f} ms"
            self._links[believed.node.name].fail_all(why, hopeless=True)
        for links in self._links.values():
            links.close_idle()
        for links, give_up_ms in self._leaving:
            if now_ms >= give_up_ms:
                links.fail_all("it has left the fleet")
            if not links.in_flight:
                links.close()
        self._leaving = [one for one in self._leaving if one[0].in_flight]

    def plan_is_for(self, models: Collection[str] | None, unplaced: Mapping[str, str]) -> None:
        """Set the models to be served, and why some are unplaced; callers receive the reason.

        ``None``: the models are not known here.
        """
        self.routes.wanted, self.routes.unplaced = models, unplaced

    def serves(self, model: str) -> bool:
        """Whether a node that can be asked answers this model; "" for any."""
        return self.routes.serves(model, self.now_ms())

    def choose(
        self, model: str, tried: Collection[str], waited_ms: float, sequence: str = ""
    ) -> NodeLinks:
        """The links to the node to send a request to (``Routes.choose``).

        Raises:
            ServeError: there is none.
        """
        now_ms = self.now_ms()
        if sequence:
            node = self.routes.choose_for(sequence, model, tried, now_ms)
        else:
            node = self.routes.choose(model, tried, waited_ms, now_ms)
        return self._links[node.name]

    def links(self, node: str) -> NodeLinks:
        """Those to one node.

        Raises:
            ServeError: there is no such node any more.
        """
        links = self._links.get(node)
        if links is None:
            raise ServeError(Reason.NOT_READY, f"node {node} has left the fleet")
        return links

    def metrics(self) -> str:
        """The page that Prometheus reads."""
        page, now_ms = MetricsPage(), self.now_ms()
        for name, kind, text in _FAMILIES:
            page.family(name, kind, text)
        for believed in self.routes.nodes:
            node = believed.node.name
            links, labels = self._links[node], {"node": node}
            page.add("interlace_router_requests_total", links.sent, labels)
            page.add("interlace_router_lost_total", links.lost, labels)
            page.add("interlace_router_in_flight", links.in_flight, labels)
            if believed.heard_ms > -inf:
                page.add("interlace_router_silent_ms", now_ms - believed.heard_ms, labels)
        return page.text()

    def close(self) -> None:
        """Close every connection."""
        for links in (*self._links.values(), *(links for links, _ in self._leaving)):
            links.close()
