"""Nodes that are added to a fleet and removed from it while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.fleet.membership import Membership


class ChangingNodes:
    """Those of another membership, without what was removed and with what was added."""

    def __init__(self, named: Membership) -> None:
        self._named = named
        self._nodes: tuple[Node, ...] = ()
        self._added: dict[str, Node] = {}
        self._removed: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, node: Node) -> None:
        """Have one more, or have one again.

        Raises:
            ServeError: another one has its name.
        """
        known = {one.name: one for one in self._now()}.get(node.name)
        if known is not None and known != node:
            raise ServeError(
                Reason.BAD_INPUT,
                f"node '{node.name}' is at {known.host}:{known.http_port}: choose another name, or "
                "remove it first",
            )
        self._removed.discard(node.name)
        self._added[node.name] = node
        self._changed.set()

    def remove(self, name: str) -> None:
        """Have one less."""
        self._added.pop(name, None)
        self._removed.add(name)
        self._changed.set()

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """All nodes that there are, at once and after each change; never ends."""
        following = asyncio.ensure_future(self._follow())
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                yield self._now()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        async for nodes in self._named.watch():
            self._nodes = nodes
            self._changed.set()

    def _now(self) -> tuple[Node, ...]:
        named = {node.name: node for node in self._nodes if node.name not in self._removed}
        return tuple({**named, **self._added}.values())
