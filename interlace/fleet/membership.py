"""Membership: the nodes of a fleet, named, found or changed, and which of them are lost."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.core.tables import counted
from interlace.core.user_errors import InputError

_LOG: Final = logging.getLogger(__name__)
_NAMED: Final = "dns:"
_FORMS: Final = "[NAME=]HOST:PORT, such as 10.0.0.7:8000, or dns:NAME:PORT"

#: Addresses of a host's name; raises OSError where nobody knows.
Resolve = Callable[[str, int], Awaitable[Iterable[str]]]


class Membership(Protocol):
    """The nodes of a fleet. That one is named says nothing of whether it answers."""

    def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """All nodes that there are, at once and after each change."""
        ...


class ListedNodes:
    """These, whatever happens."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._nodes = nodes

    def __str__(self) -> str:
        return counted(len(self._nodes), "node")

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """Once, for good."""
        yield self._nodes


class NamedNodes:
    """Every address of one name, as a headless service of Kubernetes has them.

    The name is resolved anew every ``every_s``. As long as nobody can say what it means, the nodes
    that were known stay: they tell themselves whether they live.
    """

    def __init__(
        self, host: str, port: int, every_s: float = 2.0, resolve: Resolve | None = None
    ) -> None:
        """``port`` is that of their HTTP; ``resolve`` is the system's unless another is given."""
        self._host = host
        self._port = port
        self._every_s = every_s
        self._resolve = _addresses if resolve is None else resolve

    def __str__(self) -> str:
        return f"the nodes of {self._host}"

    async def watch(self) -> AsyncIterator[tuple[Node, ...]]:
        """Never ends."""
        known: tuple[Node, ...] | None = None
        failed = False
        while True:
            try:
                found = sorted(set(await self._resolve(self._host, self._port)))
            except OSError as error:
                if not failed:
                    _LOG.warning("%s has no addresses: %s", self._host, error)
                failed = True
            else:
                failed = False
                nodes = tuple(_node(address, self._port, self._host) for address in found)
                if nodes != known:
                    known = nodes
                    yield nodes
            await asyncio.sleep(self._every_s)


def membership(texts: Sequence[str]) -> ListedNodes | NamedNodes:
    """Nodes as they are named on a command line: a list, or one service's name alone.

    Raises:
        InputError: one is of no such form, or two have one name.
    """
    if len(texts) == 1 and texts[0].startswith(_NAMED):
        return NamedNodes(*_host_port(texts[0].removeprefix(_NAMED), texts[0]))
    found = tuple(map(parse_node, texts))
    twice = [name for name, count in Counter(node.name for node in found).items() if count > 1]
    if twice:
        raise InputError(f"node '{twice[0]}' is named twice")
    return ListedNodes(found)


def parse_node(text: str) -> Node:
    """A node as ``[NAME=]HOST:PORT``; gRPC is spoken on the port after it.

    Raises:
        InputError: it is not of that form.
    """
    name, equals, address = text.rpartition("=")
    host, port = _host_port(address, text)
    try:
        return Node(name if equals else address, host, port, port + 1)
    except ValueError as error:
        raise InputError(str(error)) from error


def _host_port(address: str, text: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    named = text.startswith(_NAMED) and address == text
    wrong = named or not host or "/" in text  # parts of a fleet are named NODE/ACCELERATOR
    if wrong or not colon or not port.isdecimal() or not 0 < int(port) < 65535:
        more = "; a service's name stands alone" if named else ""
        raise InputError(f"node '{text}': expected {_FORMS}{more}")
    bare = host.removeprefix("[").removesuffix("]")
    paired = (":" in bare) == (len(host) == len(bare) + 2) and not set(bare) & set("[]")
    if not paired and host.isprintable():
        # Which of its colons begins the port?
        raise InputError(f"node '{text}': an IPv6 address stands in brackets, as in [::1]:8000")
    return bare, int(port)


def _node(address: str, port: int, service: str) -> Node:
    host = f"[{address}]" if ":" in address else address
    named = service if service != address else ""
    return Node(f"{host}:{port}", address, port, port + 1, named)


async def _addresses(host: str, port: int) -> Iterable[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


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


LEAST_MS: Final = 800.0
MOST_MS: Final = 8000.0
MEMORY_MS: Final = 60_000.0
_FACTOR: Final = 2.0


class Presence:
    """Judges losses by when nodes were heard last. Times are the controller's own.

    A node may be silent for ``_FACTOR`` times the longest silence that it survived within the last
    ``MEMORY_MS``, between ``LEAST_MS`` and ``MOST_MS``: then its models are planned for elsewhere.
    Routers ask other nodes long before. So a node that is often late does not change the plan each
    time. A silence for which it was declared lost does not count: the next loss is answered as soon
    as the first.
    """

    def __init__(self) -> None:
        self._heard_ms: dict[str, float] = {}
        #: by node: silences that ended, and when; each is shorter than those before it
        self._survived: dict[str, deque[tuple[float, float]]] = {}

    def lost(
        self, heard_ms: Mapping[str, float], refusing: AbstractSet[str], now_ms: float
    ) -> set[str]:
        """The nodes that are lost, of all that there are, each with when it was heard last.

        Where a connection is refused (``refusing``) the process has ended. Else silence counts, but
        not while nobody is heard: then it is the controller that is late or cut off.
        """
        for node in self._heard_ms.keys() - heard_ms.keys():
            del self._heard_ms[node]
            self._survived.pop(node, None)
        for node in refusing:
            self._heard_ms.pop(node, None)  # what begins there next is another process
            self._survived.pop(node, None)
        for node in heard_ms.keys() - refusing:
            self._note(node, heard_ms[node], now_ms)
        late = {n for n, at_ms in heard_ms.items() if now_ms - at_ms > self.patience_ms(n)}
        return {*(refusing & heard_ms.keys()), *(late if len(late) < len(heard_ms) else ())}

    def patience_ms(self, node: str) -> float:
        """For how long that node may be silent."""
        survived = self._survived.get(node)
        longest_ms = survived[0][1] if survived else 0.0
        return min(max(LEAST_MS, _FACTOR * longest_ms), MOST_MS)

    def _note(self, node: str, at_ms: float, now_ms: float) -> None:
        survived = self._survived.setdefault(node, deque())
        while survived and now_ms - survived[0][0] > MEMORY_MS:
            survived.popleft()
        silence_ms = at_ms - self._heard_ms.get(node, inf)
        self._heard_ms[node] = at_ms
        if 0.0 < silence_ms <= self.patience_ms(node):
            while survived and survived[-1][1] <= silence_ms:
                survived.pop()
            survived.append((at_ms, silence_ms))
