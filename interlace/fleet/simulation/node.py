"""A simulated machine: what reaches its server, and how it is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from interlace.core.node import NodeDescription
from interlace.core.plan import Demand
from interlace.fleet.simulation.node_server import NodeClock, NodeServer
from interlace.fleet.simulation.scenario import FleetSimulation, LossKind
from interlace.runtime.clock import Clock
from interlace.runtime.runtime import Observer

Answer = TypeVar("Answer")
#: Why there will be no answer.
OnBroken = Callable[[str], None]


class SimulatedNode:
    """One machine of a fleet, reached by messages that take a while.

    What is asked of it is answered later or, where its process has ended, found broken by whoever
    asked; of one that hangs or is cut off nothing is heard.
    """

    def __init__(
        self,
        description: NodeDescription,
        scenario: FleetSimulation,
        demand: Mapping[str, Demand],
        clock: Clock,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._description = description
        self._scenario = scenario
        self._demand = demand
        self._world = clock
        self._observers = observers
        self._open: dict[object, Callable[[], None]] = {}
        self._reached = True
        self._clock, self._server = self._begin()

    @property
    def name(self) -> str:
        return self._description.name

    def ask(
        self,
        delay_ms: float,
        question: Callable[[NodeServer, Callable[[Answer], None]], None],
        answered: Callable[[Answer], None],
        broken: OnBroken,
    ) -> None:
        """Carry a question there and its answer back, each in ``delay_ms``.

        One of ``answered`` and ``broken`` is called, at most once.
        """

        def back(answer: Answer) -> None:
            if self._open.pop(mark, None) is not None and self._reached:
                self._world.call_at(self._world.now_ms() + delay_ms, lambda: answered(answer))

        def break_off() -> None:
            at_ms = self._world.now_ms() + delay_ms
            self._world.call_at(at_ms, lambda: broken("its process ended"))

        def arrive() -> None:
            if not self._reached:
                return
            server = self._server
            if server is None:
                break_off()
                return
            self._open[mark] = break_off
            self._clock.call_soon(lambda: question(server, back))

        mark = object()
        self._world.call_at(self._world.now_ms() + delay_ms, arrive)

    def lose(self, kind: LossKind) -> None:
        """Be lost from now on."""
        match kind:
            case LossKind.DIE:
                self._clock.end()
                self._server = None
                broken, self._open = self._open, {}
                for break_off in broken.values():
                    break_off()
            case LossKind.HANG:
                self._clock.stop()
            case LossKind.CUT:
                self._reached = False

    def come_back(self, kind: LossKind) -> None:
        """Be there again after a loss."""
        match kind:
            case LossKind.DIE:
                began = self._description.began + 1
                self._description = replace(self._description, began=began)
                self._clock, self._server = self._begin()
            case LossKind.HANG:
                self._clock.go_on()
            case LossKind.CUT:
                self._reached = True

    def _begin(self) -> tuple[NodeClock, NodeServer | None]:
        clock = NodeClock(self._world)
        return clock, NodeServer(
            self._description, self._scenario, self._demand, clock, self._observers
        )
