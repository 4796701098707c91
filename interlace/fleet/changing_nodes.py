"""Nodes that are added to a fleet and removed from it while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.core.user_errors import InputError
from interlace.fleet.membership import Membership
from interlace.fleet.node_changes import KeptNodeChanges, NodeChanges

_LOG: Final = logging.getLogger(__name__)


class ChangingNodes:
    """Those of another membership, without what was removed and with what was added."""

    def __init__(self, named: Membership, changes: KeptNodeChanges) -> None:
        self._named = named
        self._nodes: tuple[Node, ...] = ()
        self._changes = changes
        self._changed = asyncio.Event()

    def add(self, node: Node) -> None:
        """Have one more, or have one again.

        Raises:
            ServeError: another one has its name, or that cannot be kept.
        """
        known = {one.name: one for one in self._now()}.get(node.name)
        if known is not None and known != node:
            raise ServeError(
                Reason.BAD_INPUT,
                f"node '{node.name}' is at {known.host}:{known.http_port}: choose another name, or "
                "remove it first",
            )
        now = self._changes.now
        added = tuple(one for one in now.added if one != node)
        self._keep(replace(now, added=(*added, node), removed=now.removed - {node.name}))

    def remove(self, name: str) -> None:
        """Have one less.

        Raises:
            ServeError: that cannot be kept.
        """
        now = self._changes.now
        added = tuple(one for one in now.added if one.name != name)
        self._keep(replace(now, added=added, removed=now.removed | {name}))

    def read(self) -> None:
        """Take what another controller has changed."""
        try:
            self._changes.read()
        except InputError as error:
            _LOG.error("%s", error)
        self._changed.set()

    def _keep(self, changes: NodeChanges) -> None:
        self._changes.keep(changes)
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
        now = self._changes.now
        named = {node.name: node for node in self._nodes if node.name not in now.removed}
        return tuple({**named, **{node.name: node for node in now.added}}.values())
