"""Asks every node how it is, over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from interlace.core.errors import ServeError
from interlace.core.node import NodeState
from interlace.router.directory import NodeDirectory
from interlace.router.http.reads import NodeReader
from interlace.routing.routes import RoutingLimits

_STATE: Final = msgspec.json.Decoder(NodeState)
_PATH: Final = "/v2/node/state"
_PATIENCE_S: Final = 0.5


#: Told a node's name, and what it said of itself.
OnHeard = Callable[[str, NodeState], None]


class NodePoller:
    """One task a node, and one that gives up nodes that are silent."""

    def __init__(
        self,
        directory: NodeDirectory,
        reader: NodeReader,
        heard: OnHeard,
        limits: RoutingLimits,
    ) -> None:
        """``heard`` is told what nodes say."""
        self._heard = heard
        self._directory = directory
        self._reader = reader
        self._limits = limits
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looking = asyncio.ensure_future(self._look())

    def follow(self) -> None:
        """Ask the nodes that the directory knows now, and no others."""
        wanted = {node.name for node in self._directory.nodes}
        for name in self._tasks.keys() - wanted:
            self._tasks.pop(name).cancel()
        for name in wanted - self._tasks.keys():
            self._tasks[name] = asyncio.ensure_future(self._poll(name))

    def close(self) -> None:
        """Ask no more."""
        self._looking.cancel()
        for task in self._tasks.values():
            task.cancel()

    async def _poll(self, node: str) -> None:
        while True:
            with suppress(ServeError, msgspec.DecodeError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    answer = await self._reader.ask(node, "GET", _PATH)
                if answer.status == 200:
                    self._heard(node, _STATE.decode(answer.body))
            await asyncio.sleep(self._pause_s())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            self._directory.look()

    def _pause_s(self) -> float:
        return self._limits.pause_ms(len(self._tasks)) / 1000.0
