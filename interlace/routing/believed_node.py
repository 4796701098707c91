"""What a router believes of one node: its last state, and what was sent there since."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import Final

from interlace.core.node import ModelOutlook, Node, NodeState

#: Weight of the newest sample in the rate of requests that others send.
_NEWEST: Final = 0.3
#: No row takes less.
_LEAST_MS: Final = 1e-6


@dataclass(slots=True)
class _Traffic:
    """Requests for one model at one node."""

    outlook: ModelOutlook
    arrived: int
    sent: int = 0  #: by this router, since the last state
    others_per_ms: float = 0.0  #: by all others


class BelievedNode:
    """One node as one router sees it. Times are the router's own.

    States are old: a state was true when it was sent, and since then the node has worked, this
    router has sent requests, and other routers have. The first is counted out, the second is
    known, the third is guessed from how many came between states.
    """

    __slots__ = ("_began", "_models", "_number", "_told_ms", "accepting", "at_rest", "heard_ms",
                 "node")  # fmt: skip

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heard_ms = -inf  #: when it last said anything
        self._told_ms = -inf  #: when the state came that is believed
        self.accepting = False
        self.at_rest = False  #: it had no requests between its last two states
        self._began = self._number = -1
        self._models: dict[str, _Traffic] = {}

    def heard(self, state: NodeState, now_ms: float) -> None:
        """Take a state that has just come; an older one than the last is passed over.

        The same one again is a sign of life: a node makes a new one only now and then.
        """
        if state.began == self._began and state.number <= self._number:
            if state.number == self._number:
                self.heard_ms = now_ms
            return
        again = state.began == self._began
        passed_ms = now_ms - self._told_ms
        at_rest = again and state.settled
        models: dict[str, _Traffic] = {}
        for name, outlook in state.models.items():
            known = self._models.get(name)
            if known is None:
                models[name] = _Traffic(outlook, outlook.arrived)
                at_rest = False
                continue
            at_rest = at_rest and not known.sent and outlook.arrived == known.arrived
            if again and passed_ms > 0.0:
                others = outlook.arrived - known.arrived - known.sent
                rate = max(0.0, others) / passed_ms
                known.others_per_ms += _NEWEST * (rate - known.others_per_ms)
            known.outlook, known.arrived = outlook, outlook.arrived
            known.sent = 0
            models[name] = known
        self._models = models
        self._began, self._number = state.began, state.number
        self.heard_ms = self._told_ms = now_ms
        self.accepting, self.at_rest = state.accepting, at_rest

    def serves(self, model: str) -> bool:
        """Whether it said that it answers this model."""
        return model in self._models

    @property
    def models(self) -> AbstractSet[str]:
        """What it said that it answers."""
        return self._models.keys()

    def slo_ms(self, model: str) -> float:
        """The SLO of a model that it serves."""
        return self._models[model].outlook.slo_ms

    def answer_ms(self, model: str, now_ms: float) -> float:
        """In how many ms it would have answered one more request of a model that it serves."""
        known = self._models[model]
        outlook = known.outlook
        old_ms = now_ms - self._told_ms
        came_rows = known.sent + known.others_per_ms * old_ms
        return max(outlook.alone_ms, outlook.wait_ms + came_rows * outlook.row_ms - old_ms)

    def pace(self, model: str) -> float:
        """Rows in a ms that it takes of a model that it serves, where they wait for each other."""
        return 1.0 / max(self._models[model].outlook.row_ms, _LEAST_MS)

    def lent(self, model: str) -> bool:
        """Whether a model that it serves runs there in other models' time alone."""
        return self._models[model].outlook.lent

    def stateful(self, model: str) -> bool:
        """Whether the requests of a model that it serves belong to sequences."""
        return self._models[model].outlook.stateful

    def cold_ms(self, model: str) -> float:
        """What of that goes by loading weights whose load nobody has begun yet."""
        known = self._models[model]
        return 0.0 if known.sent else known.outlook.cold_ms

    def sent(self, model: str) -> None:
        """A request of a model went there."""
        known = self._models.get(model)
        if known is not None:
            known.sent += 1
