"""A simulated node: connections to its server, whose messages take a while, and its losses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from interlace.core.node import NodeDescription
from interlace.core.plan import Demand
from interlace.core.version import __version__
from interlace.fleet.simulation.node_server import INFER, STATE, NodeServer
from interlace.fleet.simulation.process import MakeProtocol, SimLoop, SimProcess
from interlace.fleet.simulation.scenario import FleetSimulation, LossKind
from interlace.runtime.clock import Call, Clock
from interlace.runtime.runtime import Observer

#: Sees an inference request when it is sent: the node it goes to, and its body.
OnSent = Callable[[str, bytes], None]


@dataclass(eq=False)
class SimulatedNode:
    """One node of a fleet. What it is sent while it is cut off is lost."""

    _description: NodeDescription
    _scenario: FleetSimulation
    _demand: Mapping[str, Demand]
    _clock: Clock
    _observers: Sequence[Observer]
    _on_sent: OnSent

    def __post_init__(self) -> None:
        self._connections: dict[_Connection, None] = {}
        self._reached = True
        self._random = Random(f"{self._scenario.seed}/{self._description.name}")
        self._process, self._server = self._begin()

    async def connect(
        self, loop: SimLoop, make: MakeProtocol
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection, which takes a round trip; a machine that is cut off never answers.

        Raises:
            ConnectionRefusedError: its process has ended.
        """
        await asyncio.sleep(2.0 * self._scenario.delays.request_ms / 1000.0)
        if not self._reached:
            await loop.create_future()
        if self._server is None:
            raise ConnectionRefusedError("its process has ended")
        protocol = make()
        connection = _Connection(self, loop, protocol)
        self._connections[connection] = None
        protocol.connection_made(connection)
        return connection, protocol

    def receive(self, connection: _Connection, data: bytes) -> None:
        """Carry a request to the server, and the answer back."""
        delays = self._scenario.delays
        if data.startswith(INFER):
            self._on_sent(self._description.name, data)
            delay_ms = delays.request_ms
        else:
            delay_ms = delays.news_ms if data.startswith(STATE) else delays.order_ms

        def answer(message: bytes) -> None:
            if self._reached:
                self._later(delay_ms, lambda: connection.deliver(message))

        def arrive() -> None:
            server = self._server
            if self._reached and server is not None and connection in self._connections:
                self._process.do(lambda: server.receive(data, answer))

        self._later(delay_ms, arrive)

    def closed(self, connection: _Connection) -> None:
        """The client has closed a connection."""
        self._connections.pop(connection, None)

    def lose(self, kind: LossKind) -> None:
        """Be lost from now on."""
        match kind:
            case LossKind.DIE:
                self._process.end()
                self._server = None
                connections, self._connections = self._connections, {}
                for connection in connections:
                    self._later(self._scenario.delays.request_ms, connection.abort)
            case LossKind.HANG:
                self._process.stop()
            case LossKind.CUT:
                self._reached = False

    def come_back(self, kind: LossKind) -> None:
        """Be there again after a loss."""
        match kind:
            case LossKind.DIE:
                self._process, self._server = self._begin()
            case LossKind.HANG:
                self._process.go_on()
            case LossKind.CUT:
                self._reached = True

    def _begin(self) -> tuple[SimProcess, NodeServer | None]:
        process = SimProcess(self._clock)
        description = replace(
            self._description, began=self._random.getrandbits(48), version=__version__
        )
        server = process.loop.run(
            NodeServer, description, self._scenario, self._demand, process, self._observers
        )
        return process, server

    def _later(self, delay_ms: float, call: Call) -> None:
        self._clock.call_at(self._clock.now_ms() + delay_ms, call)


class _Connection(asyncio.Transport):
    """A client's end of a connection; each message is delivered whole."""

    def __init__(self, node: SimulatedNode, loop: SimLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._node, self._loop, self._protocol = node, loop, protocol
        self._open = True

    def is_closing(self) -> bool:
        return not self._open

    def get_write_buffer_size(self) -> int:
        """Return 0: what is written is on its way at once."""
        return 0

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._node.receive(self, b"".join(list_of_data))

    def deliver(self, message: bytes) -> None:
        """Give the client what the server answered, unless the connection is closed."""
        if self._open:
            self._loop.run(self._protocol.data_received, message)

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._node.closed(self)
            self._loop.call_soon(self._protocol.connection_lost, None)
