"""Asks simulated nodes how they are, over and over, as ``router.polling`` asks real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from interlace.core.node import NodeState
from interlace.fleet.simulation.node import SimulatedNode
from interlace.runtime.clock import Clock

_PATIENCE_MS: Final = 500.0


class NodePoller:
    """One question at a time for each node; who does not answer is asked again after a while."""

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, SimulatedNode],
        pause_ms: Callable[[str], float],
        delay_ms: float,
        heard: Callable[[str, NodeState], None],
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._pause_ms = pause_ms
        self._delay_ms = delay_ms
        self._heard = heard
        self._asked = dict.fromkeys(nodes, 0)
        self._done = dict.fromkeys(nodes, 0)
        self.refusing: set[str] = set()  #: nodes whose process had ended when they were asked last

    def start(self) -> None:
        """Ask every node, one after the other within a pause."""
        for index, name in enumerate(self._nodes):
            self._later(name, self._pause_ms(name) * index / len(self._nodes))

    def _later(self, name: str, after_ms: float) -> None:
        self._clock.call_at(self._clock.now_ms() + after_ms, lambda: self._ask(name))

    def _ask(self, name: str) -> None:
        self._asked[name] = number = self._asked[name] + 1

        def answered(state: NodeState) -> None:
            self.refusing.discard(name)
            if self._done[name] < number:
                self._heard(name, state)
                self._end(name, number)

        def broken(why: str) -> None:
            self.refusing.add(name)
            given_up()

        def given_up() -> None:
            self._end(name, number)

        self._nodes[name].ask(
            self._delay_ms,
            lambda server, back: back(server.state()),
            answered,
            broken,
        )
        self._clock.call_at(self._clock.now_ms() + _PATIENCE_MS, given_up)

    def _end(self, name: str, number: int) -> None:
        """The question has ended, if it had not before."""
        if self._done[name] < number:
            self._done[name] = number
            self._later(name, self._pause_ms(name))
