"""Nodes that are added to a fleet and removed from it while it runs, or were before."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.core.user_errors import InputError
from interlace.fleet.membership import Membership

_FILE: Final = "nodes.json"


class NodeChanges(msgspec.Struct, frozen=True):
    """Nodes that were ``added`` and ``removed``, and those that are to serve nothing."""

    added: tuple[Node, ...] = ()
    removed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()


class KeptNodeChanges:
    """The changes that hold now; in a file of the lease's folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder they end with this process.

        Raises:
            InputError: the file there cannot be read.
        """
        self._path = None if folder is None else folder / _FILE
        self.now = NodeChanges()
        self.read()

    def read(self) -> None:
        """Take what another controller has kept meanwhile.

        Raises:
            InputError: it cannot be read.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            self.now = msgspec.json.decode(self._path.read_bytes(), type=NodeChanges)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"{self._path}: changes of nodes cannot be read ({error}): remove it to forget them"
            ) from error

    def keep(self, changes: NodeChanges) -> None:
        """These hold from now on.

        Raises:
            ServeError: they cannot be written, and do not hold.
        """
        if self._path is not None:
            written = self._path.with_suffix(f".{os.getpid()}")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                written.write_bytes(msgspec.json.encode(changes))
                written.replace(self._path)
            except OSError as error:
                raise ServeError(
                    Reason.BACKEND, f"the order cannot be kept in {self._path}: {error.strerror}"
                ) from error
        self.now = changes


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
