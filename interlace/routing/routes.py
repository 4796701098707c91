"""The choice of a node for each request, by when it would answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node, NodeState
from interlace.routing.believed_node import BelievedNode


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """When nodes are asked how they are, and what their silence means.

    Times are in ms since a node last answered. After ``silent_ms`` a node is asked only for want of
    others. After ``lost_ms`` it is not asked at all, and its requests are tried elsewhere. With so
    many nodes that each is asked rarely, this is after two and after three questions. While no node
    of a model answers, requests have nowhere else to go. Then nodes that were not silent when one
    of them was last heard are asked until ``unheard_times`` times as long.
    """

    silent_ms: float = 100.0
    lost_ms: float = 400.0
    unheard_times: float = 5.0
    #: Predictions that differ by less are equal: who is asked is drawn among them, so that routers
    #: that hear the same states do not all send to the same node.
    equal_ms: float = 0.05
    #: Each node is asked so often, but any two questions are ``apart_ms`` apart: with many nodes
    #: each is asked more rarely, so that asking costs a router little.
    every_ms: float = 20.0
    apart_ms: float = 1.0
    rest_ms: float = 50.0  #: how often a node without requests is asked
    look_ms: float = 100.0  #: how often lost nodes are looked for at least
    #: Without a list of wanted models, a model that was served within this time is known. Its node
    #: was lost or began anew, and the model will be served elsewhere.
    known_ms: float = 30_000.0
    any_slo_ms: float = 10_000.0  #: of requests that name no model

    def pause_ms(self, nodes: int) -> float:
        """Between two questions to one of so many nodes."""
        return max(self.every_ms, self.apart_ms * nodes)

    def silent_after_ms(self, nodes: int) -> float:
        """After how long one of so many nodes is silent."""
        return max(self.silent_ms, 2.0 * self.pause_ms(nodes))

    def lost_after_ms(self, nodes: int) -> float:
        """After how long one of so many nodes is lost."""
        return max(self.lost_ms, 3.0 * self.pause_ms(nodes))


#: One of several nodes that are equal for a model; "" where any will do.
Draw = Callable[[Sequence[BelievedNode], str], BelievedNode]


#: As ``random.Random.choices``: some of these, by their weights.
Choices = Callable[[Sequence[BelievedNode], Sequence[float]], list[BelievedNode]]


def by_pace(choices: Choices) -> Draw:
    """At random, in proportion to the rows of the model that each node takes in a time.

    A node that has few hosts of a pool is equal to one with many while both have an idle host; if
    it were asked as often, it would be full all the time.
    """

    def draw(nodes: Sequence[BelievedNode], model: str) -> BelievedNode:
        (drawn,) = choices(nodes, [node.pace(model) if model else 1.0 for node in nodes])
        return drawn

    return draw


class Routes:
    """All that one router believes of the nodes, and which node it asks.

    It asks the node that is predicted to answer first, of those that serve a model and accept
    requests; silent nodes come last. A node is asked only where no other is in time if it has no
    partition of its own for the model, or would have to load the weights. If no node holds the
    weights, all routers draw the same one (rendezvous hashing).
    """

    def __init__(self, limits: RoutingLimits, draw: Draw) -> None:
        """``draw`` picks one of several that are equal for a model."""
        self.limits = limits
        self._draw = draw
        #: models that the nodes are to serve, if this router hears it, and why some have no place
        self.wanted: Collection[str] | None = None
        self.unplaced: Mapping[str, str] = {}
        self._nodes: dict[str, BelievedNode] = {}
        self._serving: dict[str, dict[str, BelievedNode]] = {}  #: by model, then by node
        self._silent_after_ms, self._lost_after_ms = limits.silent_ms, limits.lost_ms
        self._served_ms: dict[str, float] = {}  #: when models were served last that are not now

    @property
    def nodes(self) -> list[BelievedNode]:
        """All that are known, heard of or not."""
        return list(self._nodes.values())

    def follow(self, nodes: Iterable[Node]) -> tuple[list[Node], list[Node]]:
        """Know these nodes and no others: those that are new, and those that are gone.

        A node whose address changed is both.
        """
        wanted = {node.name: node for node in nodes}
        gone = [b.node for b in self._nodes.values() if wanted.get(b.node.name) != b.node]
        for node in gone:
            left = self._nodes.pop(node.name)
            self._index(left, left.models, frozenset())
        new = [node for name, node in wanted.items() if name not in self._nodes]
        for node in new:
            self._nodes[node.name] = BelievedNode(node)
        self._silent_after_ms = self.limits.silent_after_ms(len(self._nodes))
        self._lost_after_ms = self.limits.lost_after_ms(len(self._nodes))
        return new, gone

    def heard(self, node: str, state: NodeState, now_ms: float) -> None:
        """Take what a node said of itself; strangers are passed over."""
        known = self._nodes.get(node)
        if known is not None:
            before = known.models
            known.heard(state, now_ms)
            self._index(known, before, known.models)

    def pause_ms(self, node: str, spared: bool = False) -> float:
        """Until a node is asked again; one that is ``spared`` is asked as its requests come."""
        known = self._nodes.get(node)
        pause_ms = self.limits.pause_ms(len(self._nodes))
        rests = spared or (known is not None and known.at_rest)
        return max(pause_ms, self.limits.rest_ms) if rests else pause_ms

    def look_after_ms(self, now_ms: float) -> float:
        """Until a node may be lost that is not, ``look_ms`` at most."""
        heard_ms = [n.heard_ms for n in self.present(now_ms)]
        left_ms = min(heard_ms, default=inf) - (now_ms - self._lost_after_ms)
        return min(self.limits.look_ms, max(self.limits.apart_ms, left_ms))

    def present(self, now_ms: float) -> list[BelievedNode]:
        """Nodes that have said something lately."""
        before_ms = now_ms - self._lost_after_ms
        return [n for n in self._nodes.values() if n.heard_ms > before_ms]

    def silent(self, now_ms: float) -> list[BelievedNode]:
        """Nodes that were heard of once, and not for as long as makes them lost."""
        before_ms = now_ms - self._lost_after_ms
        return [n for n in self._nodes.values() if -inf < n.heard_ms <= before_ms]

    def waits(self, node: str, model: str, waited_ms: float, now_ms: float) -> bool:
        """Whether a request that a node has is left there: no other has its model, and in time."""
        able = [n for n in self._able(model, now_ms) if n.node.name == node] if model else []
        return bool(able) and waited_ms <= able[0].slo_ms(model)

    def stalled(self, late_ms: float) -> None:
        """This router stood still for so long: nodes were not silent, it did not listen."""
        for known in self._nodes.values():
            known.heard_ms += late_ms

    def serves(self, model: str, now_ms: float) -> bool:
        """Whether a node that can be asked answers this model; "" for any."""
        return bool(self._able(model, now_ms))

    def stateful(self, model: str) -> bool:
        """Whether a model's requests belong to sequences, as the nodes that serve it say."""
        return any(node.stateful(model) for node in self._serving.get(model, {}).values())

    def choose_for(self, sequence: str, model: str, tried: Collection[str], now_ms: float) -> Node:
        """The one node for the requests of a sequence, which all routers draw alike.

        Raises:
            ServeError: NOT_READY, it was tried, or no node can be asked; else as ``choose``.
        """
        if tried:
            raise ServeError(
                Reason.NOT_READY,
                f"{_listed(tried)} has the state of sequence {sequence} of model '{model}', and no "
                f"other node: if it is lost, begin again with sequence_start",
            )
        able = self._able(model, now_ms)
        if not able:
            raise self._nobody(model, tried, now_ms)
        return min(able, key=lambda n: _drawn(f"{model}\0{sequence}", n.node.name)).node

    def choose(self, model: str, tried: Collection[str], waited_ms: float, now_ms: float) -> Node:
        """The node to send a request to, of those not ``tried`` yet.

        ``model`` is "" for what any node can answer; ``waited_ms`` is how long the request has been
        here. Only a first try is made where no node is predicted to answer in time: nodes know
        better.

        Raises:
            ServeError: UNKNOWN_MODEL, no node is to serve it; NOT_READY, none that does can be
                asked; OVERLOADED, none that is left would answer in time.
        """
        able = self._able(model, now_ms)
        if tried:
            able = [n for n in able if n.node.name not in tried]
        elif len(able) == 1:
            return able[0].node
        spoke_ms = now_ms - self._silent_after_ms
        left = [n for n in able if n.heard_ms > spoke_ms] or able
        if not left:
            raise self._nobody(model, tried, now_ms)
        if not model:
            return self._draw(left, model).node
        left_ms = left[0].slo_ms(model) - waited_ms
        answers_ms = {n: n.answer_ms(model, now_ms) for n in left}
        best_ms = min(answers_ms.values())
        if tried and best_ms > left_ms:
            raise ServeError(
                Reason.OVERLOADED,
                f"model '{model}': refused by {_listed(tried)}; no other node would answer within "
                f"the {left_ms:.1f} ms that are left",
                retry_after_ms=max(1.0, best_ms - left_ms),
            )
        own = [n for n in left if not n.lent(model)]
        if len(own) < len(left) and any(answers_ms[n] <= left_ms for n in own):
            left, answers_ms = own, {n: answers_ms[n] for n in own}
        cold = [n for n in left if n.cold_ms(model)]
        if len(cold) == len(left):
            return min(left, key=lambda n: _drawn(model, n.node.name)).node
        if cold:
            warm_ms = {n: ms for n, ms in answers_ms.items() if n not in cold}
            if min(warm_ms.values()) <= left_ms:
                answers_ms = warm_ms
        first_ms = min(answers_ms.values())
        equal = [n for n, ms in answers_ms.items() if ms <= first_ms + self.limits.equal_ms]
        return (equal[0] if len(equal) == 1 else self._draw(equal, model)).node

    def slo_ms(self, node: str, model: str) -> float:
        """Return the SLO of a model that this node serves; ``any_slo_ms`` for no model."""
        return self._nodes[node].slo_ms(model) if model else self.limits.any_slo_ms

    def sent(self, node: str, model: str) -> None:
        """A request went to that node."""
        known = self._nodes.get(node)
        if known is not None:
            known.sent(model)

    def _index(self, node: BelievedNode, before: AbstractSet[str], after: AbstractSet[str]) -> None:
        """Note which models a node answers now, and which before."""
        for model in before - after:
            others = self._serving[model]
            del others[node.node.name]
            if not others:
                del self._serving[model]
                self._served_until(node.heard_ms, model)
        for model in after - before:
            self._serving.setdefault(model, {})[node.node.name] = node
            self._served_ms.pop(model, None)

    def _served_until(self, at_ms: float, model: str) -> None:
        """Note it; for each that is noted the oldest is forgotten, if it is old enough."""
        self._served_ms[model] = at_ms
        oldest = next(iter(self._served_ms))
        if at_ms - self._served_ms[oldest] > self.limits.known_ms:
            del self._served_ms[oldest]

    def _able(self, model: str, now_ms: float) -> list[BelievedNode]:
        """Whom to ask: those that are not lost, else those that were heard last of all."""
        having = self._serving.get(model, {}) if model else self._nodes
        able = [n for n in having.values() if n.accepting]
        last_ms = max([n.heard_ms for n in able], default=-inf)
        after_ms = min(now_ms - self._lost_after_ms, last_ms - self._silent_after_ms)
        after_ms = max(after_ms, now_ms - self.limits.unheard_times * self._lost_after_ms)
        return [n for n in able if n.heard_ms > after_ms]

    def _known(self, model: str, now_ms: float) -> bool:
        """Whether a model that no node serves is to be served."""
        if self.wanted is not None:
            return model in self.wanted
        return now_ms - self._served_ms.get(model, -inf) <= self.limits.known_ms

    def _nobody(self, model: str, tried: Collection[str], now_ms: float) -> ServeError:
        """Why there is no node to ask."""
        what = f"model '{model}'" if model else "the fleet"
        having = [n for n in self._nodes.values() if not model or n.serves(model)]
        untried = [n for n in having if n.node.name not in tried]
        unheard = {n.node.name for n in self._nodes.values() if n.heard_ms == -inf}
        if untried:
            why = "; ".join(_state(node, now_ms) for node in untried)
        elif having and (self.wanted is None or model in self.wanted or not model):
            names = _listed([n.node.name for n in having])
            why = f"{names} did not answer or has it no more, and no node that is left has it ready"
        elif model in self.unplaced:
            why = (
                f"the fleet has no room for it: {self.unplaced[model]}: add a node, or take out "
                "another model"
            )
        elif self._nodes and self._known(model, now_ms):
            why = "it is to be served, and no node has it ready yet"
        elif unheard or not self._nodes:
            why = f"{_listed(unheard)} has said nothing yet" if unheard else "it has no nodes"
        elif self.wanted is not None or self._serving:
            return ServeError(Reason.UNKNOWN_MODEL, f"{what} is served by no node")
        else:  # nodes began anew, and this router does not know which models they are to serve
            why = "no node serves any model yet"
        return ServeError(Reason.NOT_READY, f"{what}: {why}", retry_after_ms=self.limits.lost_ms)


def _state(node: BelievedNode, now_ms: float) -> str:
    if not node.accepting:
        return f"node {node.node.name} is ending"
    return f"node {node.node.name} has said nothing for {now_ms - node.heard_ms:.0f} ms"


def _listed(nodes: Collection[str]) -> str:
    return "node " + ", ".join(sorted(nodes))


def _drawn(model: str, node: str) -> bytes:
    """A number that all routers draw alike, another one for each model and node."""
    return blake2b(f"{model}\0{node}".encode(), digest_size=8).digest()
