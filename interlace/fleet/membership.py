"""Membership: the nodes that routers send to and controllers plan for, as they join and leave."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

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
