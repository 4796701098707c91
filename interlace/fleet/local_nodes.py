"""Nodes as processes of this machine, which end with the one that wants them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from interlace.core.node import Node
from interlace.core.tables import counted
from interlace.fleet.node_keeper import NodeKeeper, NodeLaunch

_HOST: Final = "127.0.0.1"
_LOOK_S: Final = 0.1


class LocalNodes:
    """So many nodes, node1 and so on, each a zone by itself; one that ends is started again."""

    def __init__(self, count: int, launch: NodeLaunch) -> None:
        names = [f"node{number}" for number in range(1, count + 1)]
        self._keepers = [NodeKeeper(launch, name, _HOST, name) for name in names]

    def __str__(self) -> str:
        return f"{counted(len(self._keepers), 'node')} of this machine"

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """Never ends. A node that has ended is none until it is started again."""
        known: tuple[Node, ...] | None = None
        while True:
            nodes = tuple(node for keeper in self._keepers if (node := keeper.node()) is not None)
            if nodes != known:
                known = nodes
                yield nodes
            await asyncio.sleep(_LOOK_S)
